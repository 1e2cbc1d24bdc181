"""Shared memory of two processes on one host: what one of them writes, the other one reads, without sending anything.

A segment is an unnamed file in memory (``memfd_create(2)``). One side creates it. The other side opens it through the
open files of the first one (``/proc/PID/fd``). So nothing is left of it when both processes have ended, however and
whenever they ended. Only processes of the same user can open it, and nobody can shorten it while another one reads it.
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
"""The alignment of arrays, in bytes. XLA uses arrays with this alignment without a copy."""
_LABEL: Final = "lockstep-ps"
_NAME: Final = re.compile(r"[0-9]{1,10}/fd/[0-9]{1,10}", re.ASCII)
_F_ADD_SEALS: Final = 1033  # from Linux's fcntl.h: not every Python has the names
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004
"""No more seals, no shrinking, no growing: if the file were shortened, its readers would be killed by SIGBUS."""
_PROOF_BYTES: Final = 32


@final
class Segment:
    """A piece of shared memory.

    Args:
        descriptor: the file descriptor. The segment closes it.
        size_bytes: the length of the file, in bytes.
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
        """Creates a segment.

        Returns:
            The segment, its name (valid until `withdraw`), and the proof that it begins with. The process that opens it
            recognizes it by this proof.

        Raises:
            OSError: there is not enough memory, or this system has no memory of this kind.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError(errno.ENOSYS, "this Python has no memfd_create: it is not for Linux, or for an old one")
        descriptor = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)  # a lack of memory is found now, not by a SIGBUS later
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        segment, proof = cls(descriptor, size_bytes=size_bytes), secrets.token_bytes(_PROOF_BYTES)
        segment.view[:_PROOF_BYTES] = proof
        return segment, f"{os.getpid()}/fd/{descriptor}", proof.hex()

    @classmethod
    def open(cls, name: str, *, size_bytes: int, proof: str) -> Segment | None:
        """Opens a segment of another process. Returns None if it is on another host, or is not the expected one.

        Raises:
            CorruptDataError: the name has not the form of a segment's name.
            ValueError: the proof has not the form of a segment's proof.
        """
        if not _NAME.fullmatch(name):
            raise CorruptDataError("the name of a shared segment", received=name)
        expected = bytes.fromhex(proof)
        path = Path("/proc", name)
        try:
            if not path.readlink().name.startswith(f"memfd:{_LABEL} "):  # no file of another kind is opened
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
        """Removes the name of the segment. Whoever has opened it keeps it. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def put(self, parts: Sequence[memoryview], *, start: int, end: int) -> list[int] | None:
        """Copies parts into a range of bytes, one after the other.

        Args:
            parts: the parts.
            start: the first byte of the range.
            end: the byte after its last one.

        Returns:
            The first byte and the length of each part, in turn; None if there is not enough room for all parts.
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
        """Returns the parts that the other side has put into a range of bytes.

        Raises:
            CorruptDataError: a part is outside the range.
        """
        pairs = list(zip(places[::2], places[1::2], strict=False))
        if 2 * len(pairs) != len(places) or not all(
            start <= first and size >= 0 and first + size <= end for first, size in pairs
        ):
            raise CorruptDataError("places outside a shared segment", received=list(places))
        return [self.view[first : first + size] for first, size in pairs]

    def close(self) -> None:
        """Closes the segment. The memory stays until the last array that uses it is gone."""
        self.withdraw()
        with contextlib.suppress(BufferError):  # an array still uses a part of it: closed with that array
            self.view.release()
            self._memory.close()


def _is_sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # a file that cannot have seals
        return False
