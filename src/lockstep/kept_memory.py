"""Makes the C library keep the memory that a step frees, for the next step on CPUs.

XLA allocates each step's arrays from the C library and frees them, tens of megabytes at a time. By default, glibc
requests this memory from the kernel and returns it each time, and up to a third of a step goes into zeroing pages.

glibc keeps memory only in its main arena, and gives each thread an arena of its own by default. Libraries that Keras
imports start threads. So the settings are changed right before Keras is imported.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Final, final

PLATFORMS_VARIABLE: Final = "JAX_PLATFORMS"
_DEVICES: Final = Path("/dev")
_ACCELERATORS: Final = ("nvidia[0-9]*", "kfd", "accel[0-9]*", "vfio/[0-9]*")
"""The device files of NVIDIA's and AMD's GPUs, and of TPUs."""

# The parameters of glibc's mallopt, from malloc.h, and their new values.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES: Final = 2**31 - 1
_MMAPPED_BYTES: Final = 2**30


def keep_memory_with_keras() -> None:
    """Calls `keep_freed_memory` right before Keras is imported, or now if it is imported already.

    A process that does not import Keras, such as a caller of a deployed model, keeps its settings.
    """
    if "keras" in sys.modules:
        keep_freed_memory()
    else:
        sys.meta_path.insert(0, _KerasNotice())


@final
class _KerasNotice(MetaPathFinder):
    """Finds no module.

    It stays in the list of finders. Python goes through the list meanwhile, and would skip the one that follows.
    """

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == "keras":
            keep_freed_memory()


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory in this process, and has all threads allocate from the same arena.

    It does nothing if JAX may use an accelerator, with another C library, and if the user has set variables of glibc's
    allocator (``MALLOC_*``, ``GLIBC_TUNABLES``).

    Call it before other threads allocate memory. Threads that have an arena of their own by then keep it, and glibc
    returns the memory of large arrays in such an arena whatever the settings are.

    Returns:
        Whether the settings were changed.
    """
    if not sys.platform.startswith("linux") or _may_use_accelerators():
        return False
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    settings = ((_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _MMAPPED_BYTES), (_ARENA_MAX, 1))
    return all(mallopt(parameter, value) for parameter, value in settings)


def _may_use_accelerators() -> bool:
    named = os.environ.get(PLATFORMS_VARIABLE, "")
    if named:
        return named.partition(",")[0] != "cpu"
    return any(next(_DEVICES.glob(pattern), None) is not None for pattern in _ACCELERATORS)
