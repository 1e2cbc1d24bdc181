"""A server on loopback that acts as the part of Kubernetes' interface that machines use."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import yaml

TOKEN = "account-token"


class Kubernetes:
    """Objects of one namespace, by kind and name; `status` is what new pods have.

    It asks for `token`, or with TLS for a certificate, whose names are recorded in `shown`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, "secrets": {}}
        self.status: dict[str, Any] = {"phase": "Running"}
        self.url = ""
        self.token = TOKEN
        self.shown: list[str] = []

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


def kubeconfig(folder: Path, *, url: str, authority: bytes | None = None, **user: Any) -> str:
    """Writes a kubeconfig; returns its path.

    Args:
        folder: where.
        url: the server.
        authority: whose certificate of the server is trusted, in PEM form.
        **user: the user's entries.
    """
    cluster = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = b64encode(authority).decode()
    document = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@contextmanager
def kubernetes(tls: ssl.SSLContext | None = None, *, keeps_alive: bool = False) -> Iterator[Kubernetes]:
    """Runs it in threads.

    Args:
        tls: asks for a certificate in place of the token.
        keeps_alive: whether a connection serves several requests, if the client wants that.
    """
    state = Kubernetes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keeps_alive else "HTTP/1.0"
        timeout = 10

        def _serve(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if tls is not None:
                certificate = cast("ssl.SSLSocket", self.connection).getpeercert() or {}
                state.shown += [str(value) for kind, value in certificate["subjectAltName"] if kind == "DNS"]
            if tls is not None or self.headers.get("Authorization") == f"Bearer {state.token}":
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

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
