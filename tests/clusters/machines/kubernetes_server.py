"""A server on loopback that acts as the part of Kubernetes' interface that machines use."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "account-token"


class Kubernetes:
    """Objects of one namespace, by kind and name; `status` is what new pods have."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, "secrets": {}}
        self.status: dict[str, Any] = {"phase": "Running"}
        self.url = ""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        parts = path.removeprefix("/api/v1/namespaces/training/").split("/")
        objects, name = self.objects[parts[0]], parts[1] if len(parts) > 1 else None
        if method == "POST":
            name = body["metadata"]["name"]
            if name in objects:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": f'"{name}" already exists'}
            objects[name] = {**body, "status": self.status}
            return 201, objects[name]
        if name is None:
            label, value = query["labelSelector"][0].split("=")
            return 200, {"items": [each for each in objects.values() if each["metadata"]["labels"].get(label) == value]}
        if name not in objects:
            return 404, {"kind": "Status", "reason": "NotFound", "message": f'"{name}" not found'}
        if method == "PUT":
            objects[name] = body
        return 200, objects.pop(name) if method == "DELETE" else objects[name]


@contextmanager
def kubernetes(tls: ssl.SSLContext | None = None) -> Iterator[Kubernetes]:
    """Runs it in a thread: it asks for a token, or with TLS for a certificate."""
    state = Kubernetes()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if tls is not None or self.headers.get("Authorization") == f"Bearer {TOKEN}":
                code, document = state.answer(self.command, url.path, parse_qs(url.query), body)
            else:
                code, document = 401, {"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized"}
            data = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
