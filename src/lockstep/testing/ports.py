"""Free ports for programs that a test starts."""

from __future__ import annotations

from lockstep.processes.ports import reserve_address


def free_port() -> int:
    """Returns a free port of the loopback interface that is not in the kernel's range of ephemeral ports.

    An ephemeral port may be used by another test's connection by the time that the program listens.
    """
    held = reserve_address("127.0.0.1")
    held.close()
    return int(held.address.rpartition(":")[2])
