"""Replicas within a step: values that differ between replicas, and the context of the replica that code runs for."""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Self, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lockstep.errors import InvalidInputError
from lockstep.strategies.ground import AbstractGround
from lockstep.strategies.loops import collectives
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import BATCH_AXIS


@final
class ReduceOp(enum.Enum):
    """How the values of several replicas are reduced to one. The names are those of ``tf.distribute.ReduceOp``."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, value: ReduceOp | str) -> ReduceOp:
        """Returns the member of a name, in upper or lower case, or the member itself.

        Raises:
            InvalidInputError: there is no such reduction.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls[str(value).upper()]
        except KeyError:
            raise InvalidInputError("a reduction", received=value, allowed=[op.name for op in cls]) from None


_MOST_SHOWN: Final = 100
"""The number of elements of a replica's value above which only its corners are printed."""


@final
@jax.tree_util.register_pytree_node_class
class PerReplica:
    """A value that differs between replicas. `strategy.run` divides such values among the replicas, and returns them.

    It is a pytree node, so compiled functions can take and return it.

    Attributes:
        stacked: the replicas' values along dim 0, of shape (replicas, *the value's shape), divided over the devices.
            For an uneven batch, the number of replicas is smaller than the strategy's: it is gcd(rows, replicas).
    """

    __slots__ = ("_stacked",)

    def __init__(self, stacked: Any) -> None:
        self._stacked = stacked

    @property
    def stacked(self) -> Any:
        """The replicas' values along dim 0; see the class."""
        if isinstance(self._stacked, np.ndarray):  # one replica's batch, which a compiled step would have placed itself
            self._stacked = jnp.asarray(self._stacked)
        return self._stacked

    @property
    def num_replicas(self) -> int:
        """The number of replicas that have a value."""
        return int(self._stacked.shape[0])

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of this process's replicas, in the order of the replicas; those of all replicas during tracing."""
        return tuple(value for _, value in sorted(self._by_replica().items()))

    def _by_replica(self) -> dict[int, Any]:
        stacked = self.stacked
        if isinstance(stacked, Tracer) or not isinstance(stacked, jax.Array):
            return {index: stacked[index] for index in range(self.num_replicas)}
        found: dict[int, Any] = {}
        for shard in stacked.addressable_shards:
            first = shard.index[0].indices(self.num_replicas)[0]
            for offset in range(shard.data.shape[0]):
                found.setdefault(first + offset, shard.data[offset])
        return found

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Returns the array, for JAX."""
        return (self._stacked,), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Sequence[Any]) -> Self:
        """Creates the value from its array, for JAX."""
        del aux_data
        return cls(children[0])

    def __repr__(self) -> str:
        """Returns the values of this process's replicas as text, as ``tf.distribute`` does."""
        if isinstance(self.stacked, Tracer) or not isinstance(self.stacked, jax.Array) or self.stacked.is_deleted():
            shape, dtype = getattr(self.stacked, "shape", None), getattr(self.stacked, "dtype", None)
            num_replicas, own = (shape[0], shape[1:]) if shape else (None, None)
            return f"PerReplica(num_replicas={num_replicas}, shape={own}, {dtype=!s})"
        values = "".join(
            f"\n  {replica}: {np.array2string(np.asarray(value), prefix=f'  {replica}: ', threshold=_MOST_SHOWN)},"
            for replica, value in sorted(self._by_replica().items())
        )
        return f"PerReplica:{{{values}\n}}"


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaContext:
    """The replica that a step runs for. The names are those of ``tf.distribute.ReplicaContext``.

    Attributes:
        strategy: the strategy that runs the step; None outside of any strategy.
        num_replicas_in_sync: the number of replicas that share this step's batch. It is smaller than the strategy's
            number if the batch is uneven.
        options: the options of collectives that are given none of their own.
    """

    strategy: AbstractGround | None
    num_replicas_in_sync: int
    options: CommunicationOptions

    @property
    def replica_id_in_sync_group(self) -> Any:
        """This replica's number, from 0. While a step is traced, it is an int32 scalar array."""
        return 0 if self.strategy is None else jax.lax.axis_index(BATCH_AXIS)

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None) -> Any:
        """Reduces a value over all replicas. Every replica receives the result.

        Arrays of one dtype are sent together, in buckets. The reduction can be differentiated: the gradient of a sum
        over replicas is the sum of the replicas' gradients.

        Args:
            reduce_op: SUM or MEAN.
            value: a pytree of arrays, with the same shapes on every replica.
            options: the options of this collective, instead of the strategy's.

        Returns:
            The same pytree, with reduced arrays.

        Raises:
            InvalidInputError: there is no such reduction.
        """
        op = ReduceOp.of(reduce_op)
        if self.strategy is None:
            return value
        leaves, treedef = jax.tree.flatten(value)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        if op is ReduceOp.MEAN:
            arrays = [array / self.num_replicas_in_sync for array in arrays]
        return treedef.unflatten(collectives.all_sum(arrays, options=options or self.options))

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Concatenates the replicas' values along a dim. Every replica receives the result.

        Args:
            value: a pytree of arrays, with the same shapes on every replica.
            axis: the dim; the name is from ``tf.distribute``.
            options: ignored; part of ``tf.distribute``'s signature. Gathered arrays are sent one by one.

        Returns:
            The same pytree. In each array, this dim is multiplied by the number of replicas.
        """
        del options
        if self.strategy is None:
            return value
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, BATCH_AXIS, axis=axis, tiled=True), value)


_context: ContextVar[ReplicaContext | None] = ContextVar("lockstep_replica", default=None)


@contextmanager
def replica_context(context: ReplicaContext) -> Generator[ReplicaContext]:
    """Makes a replica's context the current one within a ``with`` block."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def active_replica_context() -> ReplicaContext | None:
    """Returns the context of the step in which this code is traced; None outside ``strategy.run``."""
    return _context.get()
