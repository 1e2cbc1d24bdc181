"""Addresses that replicas are given before their programs listen: nobody else takes them in between.

A port that was free a moment ago may be given to somebody else before the program binds it. It cannot be kept bound for
the program: one that sets no socket option could then not bind it itself. So ports are taken from below the range that
the kernel gives out by itself, and of two of Lockstep's own replicas on one machine only one gets each. Its holder has
a socket of that number in Linux's abstract namespace, which goes with its process, whatever happens to it.
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
"""Ray's workers have those below."""
LAST_PORT: Final = 32_767
NUM_TRIES: Final = 1000

_HAS_MARKS: Final[bool] = sys.platform == "linux"
_KERNELS_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


@final
class HeldAddress:
    """An address that is kept for a program until it is given back, or this process ends.

    Attributes:
        address: "host:port".
    """

    def __init__(self, address: str, *, mark: socket.socket | None) -> None:
        self.address = address
        self._mark = mark

    def close(self) -> None:
        """Gives it back. Idempotent."""
        if self._mark is not None:
            self._mark.close()


def hold_address(host: str, *, ports: range | None = None) -> HeldAddress:
    """Returns an address whose port is free, and which nobody else is given.

    Args:
        host: the host's address, as its peers reach it.
        ports: which ports come into question; those that the kernel does not give out, if left out.

    Raises:
        EngineError: none is free.
    """
    candidates = _ports() if ports is None else ports
    for port in random.sample(candidates, min(NUM_TRIES, len(candidates))):
        mark = _mark(port)
        if mark is not None or not _HAS_MARKS:
            if _is_free(host, port):
                return HeldAddress(f"{host}:{port}", mark=mark)
            if mark is not None:
                mark.close()
    raise EngineError(f"no port of {host} is free between {candidates[0]} and {candidates[-1]}")


def hold_again(address: str, *, timeout_s: float) -> HeldAddress:
    """Takes an address for a program that is started again, after whoever held it has ended. Blocks, bounded.

    Whether something listens there is not asked: connections of the program that was killed may still be about.

    Args:
        address: "host:port".
        timeout_s: how long to wait for its holder's end.

    Raises:
        EngineError: another replica has it.
    """
    port = int(address.rpartition(":")[2])
    deadline = time.monotonic() + timeout_s
    while True:
        mark = _mark(port)
        if mark is not None or not _HAS_MARKS:
            return HeldAddress(address, mark=mark)
        if time.monotonic() > deadline:
            raise EngineError(f"{address} was given to another replica")
        time.sleep(POLL_S)


def _ports() -> range:
    try:
        lowest = int(_KERNELS_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = LAST_PORT + 1
    # Where the kernel's own range leaves too little, what it gives out has to do.
    return range(FIRST_PORT, lowest if FIRST_PORT + NUM_TRIES <= lowest <= LAST_PORT else LAST_PORT + 1)


def _mark(port: int) -> socket.socket | None:
    """Takes a port among Lockstep's own replicas of this machine; returns None where another has it."""
    if not _HAS_MARKS:
        return None
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0lockstep-port-{port}")
    except OSError as error:
        mark.close()
        if error.errno != errno.EADDRINUSE:
            raise EngineError(f"port {port} cannot be kept: {error.strerror}") from error
        return None
    return mark


def _is_free(host: str, port: int) -> bool:
    """Whether a program could listen there; one that listens at all of the machine's addresses, too."""
    for address in (host, "0.0.0.0"):  # noqa: S104 - bound for a moment, and never listened at
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
