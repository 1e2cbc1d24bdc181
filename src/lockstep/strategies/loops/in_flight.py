"""Limits the programs in flight over several CPU devices to one at a time.

If several programs are in flight, their collectives wait for one another in XLA's thread pool, and may deadlock. So a
program over several CPU devices starts only when the previous one has ended. Other devices run programs in the order in
which they are dispatched, so nothing waits here.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

_last: list[jax.Array] = []
"""The smallest result of the last program; empty if the next program need not wait."""


def run_in_turn(program: Callable[..., Any], *args: Any) -> Any:
    """Calls a compiled program. If it could deadlock with the previous program, that one ends first.

    Args:
        program: the program, which returns a structure of arrays.
        args: the program's arguments.
    """
    if not _has_several_cpus():
        return program(*args)
    while _last:
        before = _last.pop()
        if not before.is_deleted():  # else it was donated to a program that waits for it
            jax.block_until_ready(before)
    results = program(*args)
    given = {id(leaf) for leaf in jax.tree.leaves(args)}  # an argument that is returned unchanged is ready at once
    new = [leaf for leaf in jax.tree.leaves(results) if id(leaf) not in given and _is_over_several_cpus(leaf)]
    if new:
        _last.append(min(new, key=lambda leaf: leaf.nbytes))
    return results


@functools.cache  # the devices of a process do not change
def _has_several_cpus() -> bool:
    try:
        return len(jax.devices("cpu")) > 1
    except RuntimeError:  # JAX runs without its CPU platform
        return False


def _is_over_several_cpus(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    devices = leaf.sharding.device_set
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"
