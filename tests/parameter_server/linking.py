"""A listener at work, for tests of links."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lockstep.parameter_server.links import Link, Listener, Message, Request

TOKEN = b"t" * 32


SILENCE_S = 2.0


TIMEOUT_S = 30.0


class Serving:
    """A listener at work in a thread."""

    def __init__(
        self, handle: Callable[[Request], Message | None], *, address: str = "127.0.0.1:0", name: str = "ps 0"
    ) -> None:
        self.listener = Listener(address, name=name, token=TOKEN, silence_s=SILENCE_S)
        self.address = self.listener.address
        self.gone: list[str] = []
        self.stop = threading.Event()
        self._handle = handle
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            self.gone += [peer.name for peer in self.listener.step(self._handle, timeout_s=0.02)]
        self.listener.close()

    def close(self) -> None:
        self.stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def link(self, **changes: object) -> Link:
        options = {
            "peer_name": "ps 0",
            "token": TOKEN,
            "name": "worker 0",
            "silence_s": SILENCE_S,
            "connect_s": TIMEOUT_S,
            **changes,
        }
        return Link(self.address, **options)  # type: ignore[arg-type]


def echo(request: Request) -> Message:
    return Message(kind="echo", fields=request.message.fields, arrays=request.message.arrays)
