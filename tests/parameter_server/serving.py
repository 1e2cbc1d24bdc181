"""Parameter servers in threads of the test's process, over real links."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

from lockstep.parameter_server.links import Link, Listener, Message
from lockstep.parameter_server.server.server import ParameterServer

TOKEN = b"t" * 32
TIMEOUT_S = 30.0


@final
@dataclass(kw_only=True)
class Serving:
    """Servers that run."""

    addresses: list[str]
    links: list[Link] = field(default_factory=list[Link])

    def connect(self, name: str) -> list[Link]:
        """Returns links of one who comes in, one to each server."""
        made = [connect(address, name) for address in self.addresses]
        self.links += made
        return made


def connect(address: str, name: str) -> Link:
    return Link(address, peer_name="ps 0", token=TOKEN, name=name, silence_s=5.0, connect_s=TIMEOUT_S)


@contextlib.contextmanager
def serving(num_servers: int) -> Iterator[Serving]:
    """Runs servers, and ends them."""
    listeners = [Listener("127.0.0.1:0", name="ps 0", token=TOKEN, silence_s=5.0) for _ in range(num_servers)]
    threads = [threading.Thread(target=ParameterServer(listener).run, daemon=True) for listener in listeners]
    for thread in threads:
        thread.start()
    servers = Serving(addresses=[listener.address for listener in listeners])
    try:
        yield servers
    finally:
        for link in servers.connect("end"):
            link.request(Message(kind="done"))
        for link in servers.links:
            link.close()
        for thread, listener in zip(threads, listeners, strict=True):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
            listener.close()
