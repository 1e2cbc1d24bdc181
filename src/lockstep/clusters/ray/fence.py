"""Which generation of controllers a Ray cluster works for, kept where all of the cluster reads it: in Ray's own store.

Each generation has a key of its own and the highest one counts, so that a controller which was suspended and raises the
fence late does not lower it. Each owner has a fence: services that share a cluster do not keep each other out.
"""

from __future__ import annotations

from typing import Final

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list, _internal_kv_put

NAMESPACE: Final = b"lockstep"


def raise_fence(generation: int, *, owner: str) -> None:
    """Makes a generation an owner's current one, unless a later one is. Idempotent; blocks for a few calls of Ray."""
    _internal_kv_put(_prefix(owner) + f"{generation:012d}".encode(), b"", overwrite=True, namespace=NAMESPACE)
    for earlier in _generations(owner):
        if earlier < current_generation(owner):
            _internal_kv_del(_prefix(owner) + f"{earlier:012d}".encode(), namespace=NAMESPACE)


def current_generation(owner: str) -> int:
    """Returns an owner's current generation; 0 before there is one. Blocks for one call of Ray."""
    return max(_generations(owner), default=0)


def _generations(owner: str) -> list[int]:
    keys = _internal_kv_list(_prefix(owner), namespace=NAMESPACE) or []
    return [int(bytes(key).removeprefix(_prefix(owner))) for key in keys]


def _prefix(owner: str) -> bytes:
    return f"generation:{owner}:".encode()
