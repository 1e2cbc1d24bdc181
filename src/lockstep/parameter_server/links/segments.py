"""Memory that two processes of one host share: what one writes the other reads, and nothing has to travel.

A segment is a file that lies in memory, made by one side, opened by the other by its name, and then without a name:
when both have gone, however they went, nothing is left of it. Only its owner's processes can open it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from lockstep.errors import CorruptDataError

ALIGNMENT: Final = 64
"""XLA takes arrays that begin at a multiple of this as they are."""
_PREFIX: Final = "lockstep-ps-"
_PROOF_BYTES: Final = 32


def _folder() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a file of a random name that must not be there, for its owner alone
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


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
        finally:
            os.close(descriptor)
        self.size_bytes = size_bytes
        self.view = memoryview(self._memory)

    @classmethod
    def create(cls, size_bytes: int) -> tuple[Segment, str, str]:
        """Makes one.

        Returns:
            It, its name, and what it begins with: whoever opens it shows by that that it is the same one.

        Raises:
            OSError: there is no memory for it.
        """
        name, proof = f"{_PREFIX}{secrets.token_hex(16)}", secrets.token_bytes(_PROOF_BYTES)
        path = _folder() / name
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)  # what is not there is found now, and not by a SIGBUS later
            segment = cls(os.dup(descriptor), size_bytes=size_bytes)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        segment.view[:_PROOF_BYTES] = proof
        return segment, name, proof.hex()

    @classmethod
    def open(cls, name: str, *, size_bytes: int, proof: str) -> Segment | None:
        """Opens one that another process has made; None where it is not of this host, or not the one that is meant.

        Raises:
            CorruptDataError: the name is not one that `create` gives.
        """
        random = name.removeprefix(_PREFIX)
        if not (name.startswith(_PREFIX) and len(random) == 32 and random.isalnum() and random.isascii()):
            raise CorruptDataError("the name of a shared segment", received=name)
        try:
            descriptor = os.open(_folder() / name, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None
        if os.fstat(descriptor).st_size != size_bytes or size_bytes < _PROOF_BYTES:
            os.close(descriptor)
            return None
        segment = cls(descriptor, size_bytes=size_bytes)
        if not secrets.compare_digest(bytes(segment.view[:_PROOF_BYTES]), bytes.fromhex(proof)):
            segment.close()
            return None
        return segment

    @staticmethod
    def unlink(name: str) -> None:
        """Takes a segment's name away; who has it open keeps it. Idempotent."""
        (_folder() / name).unlink(missing_ok=True)

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
        with contextlib.suppress(BufferError):  # somebody looks at a part of it: it goes with that
            self.view.release()
            self._memory.close()
