"""What travels in one exchange: the worker's push, and the pull that answers it. And the shape of a rival.

The traffic is that of a parameter server: "dense" is a model's gradients up and its parameters down, one buffer each;
"sparse" is the ids of a batch's rows with their gradients up, and the next batch's rows down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np

HEADER: Final = b'{"closure": 123456, "number": 1, "version": 654321, "kind": "push-pull"}'


@final
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of exchange.

    Attributes:
        name: for the table.
        up_bytes: size of each buffer of the request, after the header.
        down_bytes: size of each buffer of the answer, after the header.
    """

    name: str
    up_bytes: tuple[int, ...]
    down_bytes: tuple[int, ...]

    def request(self) -> list[np.ndarray]:
        """Returns the request's buffers: bytes of many values."""
        return [_filled(size) for size in self.up_bytes]

    def answer(self) -> list[np.ndarray]:
        """Returns the answer's buffers."""
        return [_filled(size) for size in self.down_bytes]


def _filled(size_bytes: int) -> np.ndarray:
    return np.arange(size_bytes, dtype=np.uint64).astype(np.uint8)


KINDS: Final = (
    Traffic(name="empty", up_bytes=(), down_bytes=()),
    Traffic(name="dense 0.4 MB", up_bytes=(407_080,), down_bytes=(407_080,)),
    Traffic(name="dense 10 MB", up_bytes=(10_000_000,), down_bytes=(10_000_000,)),
    Traffic(name="sparse 1,000 rows of 64", up_bytes=(8_000, 256_000, 8_000), down_bytes=(256_000,)),
    Traffic(name="sparse 8,000 rows of 64", up_bytes=(64_000, 2_048_000, 64_000), down_bytes=(2_048_000,)),
)


class Client(Protocol):
    """What a rival's client does."""

    def exchange(self, header: bytes, buffers: list[np.ndarray]) -> tuple[bytes, list[memoryview]]:
        """Sends a request and returns its answer; the answer's buffers can be read as memory."""
        ...

    def close(self) -> None:
        """Hangs up."""
        ...


Answer = Callable[[bytes, list[memoryview]], tuple[bytes, list[np.ndarray]]]
"""What the server does with a request."""
