"""Ports for programs that a test starts and that are told where to listen."""

from __future__ import annotations

from lockstep.processes.ports import reserve_address


def free_port() -> int:
    """Returns a port of the loopback interface that is free, and that the kernel gives nobody by itself.

    One of those that it gives out may be another test's connection by the time that the program listens.
    """
    held = reserve_address("127.0.0.1")
    held.close()
    return int(held.address.rpartition(":")[2])
