"""Which generation of controllers a Ray cluster works for, kept where all of the cluster reads it: in Ray's own store.

Each generation has a key of its own and the highest one counts, so that a controller which was suspended and raises the
fence late does not lower it.
"""

from __future__ import annotations

from typing import Final

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list, _internal_kv_put

NAMESPACE: Final = b"lockstep"
PREFIX: Final = b"generation:"


def raise_fence(generation: int) -> None:
    """Makes a generation the current one, unless a later one is. Idempotent; blocks for one call of Ray."""
    _internal_kv_put(PREFIX + f"{generation:012d}".encode(), b"", overwrite=True, namespace=NAMESPACE)
    for earlier in _generations():
        if earlier < current_generation():
            _internal_kv_del(PREFIX + f"{earlier:012d}".encode(), namespace=NAMESPACE)


def current_generation() -> int:
    """Returns the current generation; 0 before there is one. Blocks for one call of Ray."""
    return max(_generations(), default=0)


def _generations() -> list[int]:
    keys = _internal_kv_list(PREFIX, namespace=NAMESPACE) or []
    return [int(bytes(key).removeprefix(PREFIX)) for key in keys]
