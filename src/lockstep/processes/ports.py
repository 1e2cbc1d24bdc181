"""Reserves addresses for replicas until their programs listen on them.

A port that is free now may be taken by another process before the program binds it. Lockstep cannot keep the port bound
for the program, because a program that sets no socket option could then not bind it itself. So ports are chosen below
the range from which the kernel assigns ports by itself, and at most one of Lockstep's replicas on a machine gets each
port. The holder of a port binds a socket with the port's number in Linux's abstract namespace. The kernel removes this
socket when the holder's process ends, however it ends.
"""

from __future__ import annotations

import errno
import random
import socket
import sys
import time
from pathlib import Path
from typing import Final, final

from lockstep.errors import EngineError
from lockstep.processes.identities import POLL_S

FIRST_PORT: Final = 20_000
"""The lowest port for replicas; Ray's workers use ports below it."""
LAST_PORT: Final = 32_767
NUM_TRIES: Final = 1000

_HAS_MARKS: Final[bool] = sys.platform == "linux"
_RANDOM: Final = random.SystemRandom()  # the global generator belongs to the user's program, which may have seeded it
_KERNELS_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


@final
class ReservedAddress:
    """An address that is reserved for a program until it is closed, or this process ends.

    Attributes:
        address: the address, as ``host:port``.
    """

    def __init__(self, address: str, *, mark: socket.socket | None) -> None:
        self.address = address
        self._mark = mark

    def close(self) -> None:
        """Releases the address. Idempotent."""
        if self._mark is not None:
            self._mark.close()


def reserve_address(host: str, *, ports: range | None = None) -> ReservedAddress:
    """Reserves an address with a free port, and returns it.

    Args:
        host: the host's address for its peers.
        ports: the ports to choose from; by default those that the kernel does not assign by itself.

    Raises:
        EngineError: no port is free, or a port cannot be reserved.
    """
    candidates = _ports() if ports is None else ports
    for port in _RANDOM.sample(candidates, min(NUM_TRIES, len(candidates))):
        mark = _mark(port)
        if mark is not None or not _HAS_MARKS:
            if _is_free(host, port):
                return ReservedAddress(f"{host}:{port}", mark=mark)
            if mark is not None:
                mark.close()
    raise EngineError(f"no port of {host} is free between {candidates[0]} and {candidates[-1]}")


def reserve_again(address: str, *, timeout_s: float) -> ReservedAddress:
    """Reserves an address again for a restarted program, as soon as its previous holder has ended. Blocks.

    The function does not check whether the port is free, because connections of the killed program may still exist.

    Args:
        address: the address, as ``host:port``.
        timeout_s: how long to wait for the end of the previous holder, in seconds.

    Raises:
        EngineError: another replica has the address.
    """
    port = int(address.rpartition(":")[2])
    deadline = time.monotonic() + timeout_s
    while True:
        mark = _mark(port)
        if mark is not None or not _HAS_MARKS:
            return ReservedAddress(address, mark=mark)
        if time.monotonic() > deadline:
            raise EngineError(f"{address} was given to another replica")
        time.sleep(POLL_S)


def _ports() -> range:
    try:
        lowest = int(_KERNELS_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = LAST_PORT + 1
    # If too few ports are left below the kernel's range, ports in its range have to do.
    return range(FIRST_PORT, lowest if FIRST_PORT + NUM_TRIES <= lowest <= LAST_PORT else LAST_PORT + 1)


def _mark(port: int) -> socket.socket | None:
    """Reserves a port among Lockstep's replicas on this machine.

    Returns:
        The socket that marks the port; None if another replica has the port, or if the system has no such sockets.
    """
    if not _HAS_MARKS:
        return None
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0lockstep-port-{port}")
    except OSError as error:
        mark.close()
        if error.errno != errno.EADDRINUSE:
            raise EngineError(f"port {port} cannot be reserved: {error.strerror}") from error
        return None
    return mark


def _is_free(host: str, port: int) -> bool:
    """Whether a program could listen on this port, at the host's address and at all addresses of the machine."""
    for address in (host, "0.0.0.0"):  # noqa: S104 - bound for a moment, never listened on
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
