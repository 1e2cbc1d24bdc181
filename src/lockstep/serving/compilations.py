"""Counts the programs that JAX compiles in this process, and those that it finds in its cache on disk."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final, Self, final

import jax.monitoring

from lockstep.errors import counted

_FOUND: Final = "/jax/compilation_cache/cache_hits"
_NEEDED: Final = "/jax/core/compile/backend_compile_duration"
"""The event of a program that was compiled, or found in the cache instead."""


@final
class Compilations:
    """Counts programs in a block, for the log. Use it as a context manager.

    Attributes:
        num_needed: the programs that were needed.
        num_found: those of them that were in the cache, and were not compiled.
    """

    def __init__(self) -> None:
        self.num_needed = self.num_found = 0
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        jax.monitoring.register_event_listener(self._count_event)
        jax.monitoring.register_event_duration_secs_listener(self._count_duration)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # somebody has cleared all listeners
            jax.monitoring.unregister_event_listener(self._count_event)
            jax.monitoring.unregister_event_duration_listener(self._count_duration)

    def _count_event(self, event: str, **_: Any) -> None:
        self.num_found += event == _FOUND

    def _count_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        self.num_needed += event == _NEEDED

    def __str__(self) -> str:
        return (
            f"loaded the model in {time.monotonic() - self._start:.1f} s: compiled "
            f"{counted(self.num_needed - self.num_found, 'program')}, and found {self.num_found:,} compiled"
        )
