"""A receiver of webhooks: a real HTTP server on loopback."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

TIMEOUT_S = 30.0


class Receiver:
    """An HTTP server that answers as it is told to, and keeps what it was told."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_asked = 0
        self.status = 204
        self.location = "http://127.0.0.1:1/"
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.num_asked += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.hangs.is_set():
                    receiver.goes_on.wait(TIMEOUT_S)
                    return
                if receiver.status < 300:
                    receiver.taken.append(json.loads(body))
                    receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(receiver.status)
                self.send_header("location", receiver.location)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?secret=in-the-url"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.goes_on.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(TIMEOUT_S)
