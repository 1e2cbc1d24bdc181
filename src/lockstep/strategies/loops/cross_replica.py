"""Reduces, gathers and separates replicas' values between steps.

The functions work both while a program is traced and outside of it. Outside, if there are several processes, each of
them must call the function.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from lockstep.errors import InvalidInputError
from lockstep.strategies.loops.in_flight import run_in_turn
from lockstep.strategies.loops.replica import PerReplica, ReduceOp
from lockstep.strategies.mesh import AbstractLayout


def reduce_values(layout: AbstractLayout, reduce_op: ReduceOp | str, value: Any, axis: int | None) -> Any:
    """Reduces the replicas' values to one; see `AbstractStrategy.reduce`."""
    op = ReduceOp.of(reduce_op)

    def reduce_leaf(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            _check_axis(leaf, axis)
            reduce = partial(_reduce_stacked, op=op, axis=axis, sharding=layout.replicated)
            return run_in_turn(reduce, leaf.stacked)
        if op is ReduceOp.MEAN or layout.num_replicas == 1:
            return leaf
        raise InvalidInputError(
            "a sum over replicas takes values that replicas have",
            received=f"{type(leaf).__name__}, the same for all {layout.num_replicas} replicas",
            allowed="what strategy.run returned",
        )

    return jax.tree.map(reduce_leaf, value, is_leaf=_is_per_replica)


def gather_values(layout: AbstractLayout, value: Any, axis: int) -> Any:
    """Concatenates the replicas' values; see `AbstractStrategy.gather`."""

    def gather_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, PerReplica):
            return leaf
        _check_axis(leaf, axis)
        return run_in_turn(partial(_gather_stacked, axis=axis, sharding=layout.replicated), leaf.stacked)

    return jax.tree.map(gather_leaf, value, is_leaf=_is_per_replica)


def local_results(value: Any) -> tuple[Any, ...]:
    """Returns one structure for each of this process's replicas; see `AbstractStrategy.experimental_local_results`."""
    leaves, treedef = jax.tree.flatten(value, is_leaf=_is_per_replica)
    if not any(_is_per_replica(leaf) for leaf in leaves):
        return (value,)
    columns = [leaf.values if isinstance(leaf, PerReplica) else None for leaf in leaves]
    num_values = max(len(column) for column in columns if column is not None)
    return tuple(
        treedef.unflatten(
            [leaf if column is None else column[at] for leaf, column in zip(leaves, columns, strict=True)]
        )
        for at in range(num_values)
    )


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def _check_axis(value: PerReplica, axis: int | None) -> None:
    num_dims = value.stacked.ndim - 1
    if axis is not None and not -num_dims <= axis < num_dims:
        raise InvalidInputError(
            "an axis of replicas' values",
            received=axis,
            allowed=f"{-num_dims} to {num_dims - 1}"
            if num_dims
            else "none: they are scalars; use reduce with axis=None",
        )


@partial(jax.jit, static_argnames=("op", "axis", "sharding"))
def _reduce_stacked(stacked: jax.Array, *, op: ReduceOp, axis: int | None, sharding: NamedSharding) -> jax.Array:
    dims = (0,) if axis is None else (0, axis + 1 if axis >= 0 else stacked.ndim + axis)
    reduced = jnp.sum(stacked, axis=dims) if op is ReduceOp.SUM else jnp.mean(stacked, axis=dims)
    return jax.lax.with_sharding_constraint(reduced, sharding)


@partial(jax.jit, static_argnames=("axis", "sharding"))
def _gather_stacked(stacked: jax.Array, *, axis: int, sharding: NamedSharding) -> jax.Array:
    dim = axis if axis >= 0 else stacked.ndim - 1 + axis
    shape = list(stacked.shape[1:])
    shape[dim] *= stacked.shape[0]
    gathered = jnp.moveaxis(stacked, 0, dim).reshape(shape)
    return jax.lax.with_sharding_constraint(gathered, sharding)
