"""Places on the loopback interface. The standard library alone: sides import it."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Returns ports of the loopback interface on which nobody listens now."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]
