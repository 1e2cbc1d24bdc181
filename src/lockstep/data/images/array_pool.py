"""Reuses the memory of dropped arrays for new arrays of the same size.

A batch of images takes tens of megabytes. Without reuse, the C library returns them to the system and requests them
again for each batch. The system then clears every page, which takes as long as decoding the images.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike

_MAX_FREE: Final = 16
_ALIGNMENT: Final = 64
"""The alignment of arrays, in bytes: JAX uses an array of the host without a copy if its address is a multiple."""


@final
class ArrayPool:
    """Creates arrays in the memory of earlier ones to which nothing refers any more, not even a view.

    It keeps the memory of at most 16 dropped arrays, all of one size: when the size changes, as with the last batch of
    an epoch, memory of another size is freed. It is thread-safe, and may be pickled (without the memory).
    """

    def __init__(self) -> None:
        # An array may be dropped at any point of any thread, even within these methods. A lock could deadlock then, so
        # only operations that are atomic by themselves are used.
        self._free: deque[np.ndarray] = deque(maxlen=_MAX_FREE)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
        """Returns an array whose contents are not defined, as ``numpy.empty`` does.

        Args:
            shape: the array's shape.
            dtype: the array's dtype; one of numbers.
        """
        size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = self._take(size_bytes)
        # Views, and views of views, keep this array alive as their base. If it were a view of `memory` itself, NumPy
        # would make `memory` their base instead.
        whole = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole.view(dtype).reshape(shape)

    def _take(self, size_bytes: int) -> np.ndarray:
        while True:
            try:
                memory = self._free.pop()
            except IndexError:
                break
            if memory.size == size_bytes:
                return memory
        room = np.empty(size_bytes + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        return room[start : start + size_bytes]

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        del state
        self.__init__()
