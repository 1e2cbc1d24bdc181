"""A proxy before a store's server, that does to requests what networks and busy stores do."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that came by: what was asked for, and how long the answer was."""

    method: str
    path: str
    range: str | None


@dataclass(kw_only=True)
class Fault:
    """What is done to requests.

    Attributes:
        kind: "status" (answers with `status` and `body`), "reset" (the connection), "cut" (the body in its middle, the
            connection closed), "short" (half of the body, said to be all), "stall" (no answer).
        times: how many requests it is done to; None for all.
        applies: to which requests.
    """

    kind: str
    times: int | None = None
    status: int = 503
    body: bytes = b""
    applies: Callable[[Request], bool] = lambda request: True


@dataclass(kw_only=True)
class Proxy:
    """What the test holds of a running proxy."""

    url: str
    requests: list[Request] = field(default_factory=list)
    gate: threading.Barrier | None = None
    """Where there is one, requests for ranges go on when as many as it says are there."""
    _fault: Fault | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, kind: str, **options: Any) -> None:
        """From now on does something to requests, and counts them anew."""
        with self._lock:
            self.requests.clear()
            self._fault = Fault(kind=kind, **options)

    def forward(self) -> None:
        """From now on does nothing to them, and counts them anew."""
        with self._lock:
            self.requests.clear()
            self._fault = None

    def take(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            fault = self._fault
            if fault is None or fault.times == 0 or not fault.applies(request):
                return None
            if fault.times is not None:
                fault.times -= 1
            return fault


@contextmanager
def proxy_before(server_url: str) -> Iterator[Proxy]:
    """Runs a proxy in threads.

    Args:
        server_url: where the requests go on to.
    """
    upstream = urlsplit(server_url)
    assert upstream.hostname is not None
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

        def handle_any(self) -> None:
            body = self._read_body()
            request = Request(method=self.command, path=self.path, range=self.headers.get("Range"))
            if proxy.gate is not None and request.range is not None:
                proxy.gate.wait()
            fault = proxy.take(request)
            if fault is not None and fault.kind in ("status", "reset", "stall"):
                self._fail(fault)
                return
            status, headers, data = self._ask(body)
            sent = data[: len(data) // 2] if fault is not None else data
            stated = len(sent) if fault is not None and fault.kind == "short" else len(data)
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            if self.command == "HEAD":
                self.send_header("Content-Length", dict(headers).get("Content-Length", "0"))
                self.end_headers()
                return
            if status != 204:
                self.send_header("Content-Length", str(stated))
            self.end_headers()
            self.wfile.write(sent)
            self.close_connection = self.close_connection or stated != len(sent)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

        def _read_body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size_bytes := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size_bytes))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _fail(self, fault: Fault) -> None:
            if fault.kind == "status":
                body = b"" if self.command == "HEAD" else fault.body
                self.send_response(fault.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            if fault.kind == "stall":
                ended.wait(30)
            # What is unsent is thrown away, and the other side is told so: a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            assert upstream.hostname is not None
            connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=30)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                headers.pop("Expect", None)
                connection.request(self.command, self.path, body=body, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away is part of the tests."""

    server = Server((LOOPBACK, 0), Handler)
    proxy = Proxy(url=f"http://{LOOPBACK}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="proxy")
    thread.start()
    try:
        yield proxy
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
