"""A server on loopback that acts as the part of Google's Compute Engine that Ray's client uses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class ComputeEngine:
    """Instances of one zone, by name. What is set by `refusal` fails each operation from then on."""

    def __init__(self) -> None:
        self.instances: dict[str, dict[str, Any]] = {}
        self.refusal: dict[str, str] | None = None
        self.url = ""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        name = path.rpartition("/")[2]
        if "/operations/" in path:
            return 200, {
                "name": name,
                "status": "DONE",
                **({"error": {"errors": [self.refusal]}} if self.refusal else {}),
            }
        if method == "GET":
            return 200, {"items": [node for node in self.instances.values() if matches(node, query["filter"][0])]}
        if method == "POST":
            if self.refusal is None:
                self.instances[body["name"]] = {**body, "status": "RUNNING"}
            return 200, {"name": f"insert-{body['name']}", "status": "RUNNING"}
        if self.instances.pop(name, None) is None:
            return 404, {"error": {"code": 404, "message": f"{name} was not found"}}
        return 200, {"name": f"delete-{name}", "status": "RUNNING"}


def matches(node: dict[str, Any], expression: str) -> bool:
    """Evaluates what Ray asks for: labels that are all there, and one of several states."""
    statuses = re.findall(r"\(status = (\w+)\)", expression)
    labels = dict(re.findall(r"\(labels\.([\w-]+) = ([\w-]+)\)", expression))
    return node["status"] in statuses and labels.items() <= node["labels"].items()


@contextmanager
def compute_engine() -> Iterator[ComputeEngine]:
    """Runs it in a thread."""
    engine = ComputeEngine()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, document = engine.answer(self.command, url.path, parse_qs(url.query), body)
            data = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
