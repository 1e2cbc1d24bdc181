"""Memory of arrays that nobody has any more, for the next ones of their size.

A batch of images takes tens of megabytes, which the C library gives back to the system and asks for again each time:
the system then clears every page, which takes as long as to decode the images.
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
"""Where arrays begin: JAX takes an array of the host's as it is, without a copy, where it begins at a multiple."""


@final
class ArrayPool:
    """Makes arrays, in the memory of earlier ones where nothing refers to these any more, no view either.

    It keeps the memory of at most 16 arrays that were dropped, all of one size: a change of the size, as in the last
    batch of an epoch, drops what does not fit. It may be used from any thread, and it may be pickled (without memory).
    """

    def __init__(self) -> None:
        # Arrays are dropped at any point of any thread, in the middle of these methods, too: so no lock, but what is
        # atomic by itself.
        self._free: deque[np.ndarray] = deque(maxlen=_MAX_FREE)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
        """Returns an array whose contents are not defined, as ``numpy.empty``.

        Args:
            shape: of any number of dimensions.
            dtype: of numbers.
        """
        size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = self._take(size_bytes)
        # Views of it, at any remove, hold on to this array, as they would not to one that were a view of `memory`.
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
