"""How many steps may be under way: over several CPU devices, one.

Collectives of several programs in flight wait for one another on XLA's pool of threads, and may wait for good. So a
program that goes over several CPU devices begins when the one before it has ended. Other devices run programs in the
order in which they were given them, and nothing waits here.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

_last: list[jax.Array] = []
"""A result of the program that was given last, small; none where nobody has to wait for it."""


def run_in_turn(program: Callable[..., Any], *args: Any) -> Any:
    """Calls a compiled program, after the one before it where both could wait for each other.

    Args:
        program: the program; what it returns is a structure of arrays.
        args: its arguments.
    """
    while _last:
        before = _last.pop()
        if not before.is_deleted():  # given away to a program that waits for it
            jax.block_until_ready(before)
    results = program(*args)
    given = {id(leaf) for leaf in jax.tree.leaves(args)}  # what comes back as it was is ready at once
    new = [leaf for leaf in jax.tree.leaves(results) if id(leaf) not in given and _is_over_several_cpus(leaf)]
    if new:
        _last.append(min(new, key=lambda leaf: leaf.nbytes))
    return results


def _is_over_several_cpus(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    devices = leaf.sharding.device_set
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"
