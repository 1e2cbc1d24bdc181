"""Memory that two processes of one host share: what one writes the other reads, and nothing has to travel.

A segment is a file without a name that lies in memory (``memfd_create(2)``), made by one side, and opened by the other
through the first one's open files (``/proc/PID/fd``): when both have gone, however and whenever they went, nothing is
left of it. Only its owner's processes can open it, and nobody can make it shorter under another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from lockstep.errors import CorruptDataError

ALIGNMENT: Final = 64
"""XLA takes arrays that begin at a multiple of this as they are."""
_LABEL: Final = "lockstep-ps"
_NAME: Final = re.compile(r"[0-9]{1,10}/fd/[0-9]{1,10}", re.ASCII)
_F_ADD_SEALS: Final = 1033  # from Linux's fcntl.h: not every Python for Linux has the names
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004
"""No other seals, not shorter, not longer: a file that got shorter would end, by a SIGBUS, whoever reads it."""
_PROOF_BYTES: Final = 32


@final
class Segment:
    """A piece of shared memory.

    Args:
        descriptor: the file, which becomes the segment's to close.
        size_bytes: its length.
    """

    def __init__(self, descriptor: int, *, size_bytes: int) -> None:
        try:
            self._memory = mmap.mmap(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor: int | None = descriptor
        self.size_bytes = size_bytes
        self.view = memoryview(self._memory)

    @classmethod
    def create(cls, size_bytes: int) -> tuple[Segment, str, str]:
        """Makes one.

        Returns:
            It, its name until `withdraw`, and what it begins with: by that whoever opens it knows that it is the
            one that is meant.

        Raises:
            OSError: there is no memory for it, or this system has none of the kind.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError(errno.ENOSYS, "this Python has no memfd_create: it is not for Linux, or for an old one")
        descriptor = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)  # what is not there is found now, and not by a SIGBUS later
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        segment, proof = cls(descriptor, size_bytes=size_bytes), secrets.token_bytes(_PROOF_BYTES)
        segment.view[:_PROOF_BYTES] = proof
        return segment, f"{os.getpid()}/fd/{descriptor}", proof.hex()

    @classmethod
    def open(cls, name: str, *, size_bytes: int, proof: str) -> Segment | None:
        """Opens one that another process has made; None where it is not of this host, or not the one that is meant.

        Raises:
            CorruptDataError: the name is not one that `create` gives.
            ValueError: the proof is not.
        """
        if not _NAME.fullmatch(name):
            raise CorruptDataError("the name of a shared segment", received=name)
        expected = bytes.fromhex(proof)
        path = Path("/proc", name)
        try:
            if not path.readlink().name.startswith(f"memfd:{_LABEL} "):  # a file of another kind is not touched
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if not (_is_sealed(descriptor) and os.fstat(descriptor).st_size == size_bytes >= _PROOF_BYTES):
            os.close(descriptor)
            return None
        segment = cls(descriptor, size_bytes=size_bytes)
        segment.withdraw()
        if not secrets.compare_digest(bytes(segment.view[:_PROOF_BYTES]), expected):
            segment.close()
            return None
        return segment

    def withdraw(self) -> None:
        """Takes the name away that it was made known by; who has it open keeps it. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def put(self, parts: Sequence[memoryview], *, start: int, end: int) -> list[int] | None:
        """Copies parts into a range, one after the other.

        Args:
            parts: bytes.
            start: the range's first byte.
            end: the byte after its last one.

        Returns:
            Where each part lies: its first byte and its length, in turn; None where there is not room for all.
        """
        if sum(-(-part.nbytes // ALIGNMENT) * ALIGNMENT for part in parts) > end - start:
            return None
        places: list[int] = []
        for part in parts:
            self.view[start : start + part.nbytes] = part
            places += [start, part.nbytes]
            start += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        return places

    def get(self, places: Sequence[int], *, start: int, end: int) -> list[memoryview]:
        """Returns what the other side has put into a range.

        Raises:
            CorruptDataError: the places are not within it.
        """
        pairs = list(zip(places[::2], places[1::2], strict=False))
        if 2 * len(pairs) != len(places) or not all(
            start <= first and size >= 0 and first + size <= end for first, size in pairs
        ):
            raise CorruptDataError("places outside a shared segment", received=list(places))
        return [self.view[first : first + size] for first, size in pairs]

    def close(self) -> None:
        """Lets go of it; arrays that still show it keep it."""
        self.withdraw()
        with contextlib.suppress(BufferError):  # somebody looks at a part of it: it goes with that
            self.view.release()
            self._memory.close()


def _is_sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # not a file that can be
        return False
