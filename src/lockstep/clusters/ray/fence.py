"""Stores the current generation of controllers in Ray's own store, which the whole cluster can read.

Each generation has its own key, and the highest one counts. So a controller that was suspended and raises the fence too
late does not lower it. Each owner has its own fence, so services that share a cluster do not block each other.
"""

from __future__ import annotations

from typing import Final

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list, _internal_kv_put

NAMESPACE: Final = b"lockstep"


def raise_fence(generation: int, *, owner: str) -> None:
    """Makes a generation the owner's current one, unless there is a later one.

    Idempotent. Blocks for a few calls to Ray.
    """
    _internal_kv_put(_prefix(owner) + f"{generation:012d}".encode(), b"", overwrite=True, namespace=NAMESPACE)
    for earlier in _generations(owner):
        if earlier < current_generation(owner):
            _internal_kv_del(_prefix(owner) + f"{earlier:012d}".encode(), namespace=NAMESPACE)


def current_generation(owner: str) -> int:
    """Returns an owner's current generation; 0 if there is none yet. Blocks for one call to Ray."""
    return max(_generations(owner), default=0)


def _generations(owner: str) -> list[int]:
    keys = _internal_kv_list(_prefix(owner), namespace=NAMESPACE) or []
    return [int(bytes(key).removeprefix(_prefix(owner))) for key in keys]


def _prefix(owner: str) -> bytes:
    return f"generation:{owner}:".encode()
