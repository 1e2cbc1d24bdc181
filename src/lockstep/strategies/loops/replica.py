"""What a replica is within a step: values that differ from replica to replica, and the context that code runs in."""

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
    """How values of several replicas become one, by the names of ``tf.distribute.ReduceOp``."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, value: ReduceOp | str) -> ReduceOp:
        """Reads a member or its name, in any case.

        Raises:
            InvalidInputError: there is no such way.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls[str(value).upper()]
        except KeyError:
            raise InvalidInputError("a reduction", received=value, allowed=[op.name for op in cls]) from None


_MOST_SHOWN: Final = 100
"""Elements of a replica's value above which only its corners are printed."""


@final
@jax.tree_util.register_pytree_node_class
class PerReplica:
    """A value that each replica has its own of: what `strategy.run` takes apart and returns.

    It is a pytree node, so that compiled functions take and return it.

    Attributes:
        stacked: the replicas' values along dim 0, shape (replicas, *the value's shape), divided over the devices.
            The number of replicas is smaller than the strategy's where a batch does not divide over all of them: it is
            then laid over as many as divide it.
    """

    __slots__ = ("stacked",)

    def __init__(self, stacked: Any) -> None:
        self.stacked = stacked

    @property
    def num_replicas(self) -> int:
        """How many replicas have a value."""
        return int(self.stacked.shape[0])

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of this process's replicas, in their order; all of them while a function is traced."""
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
        """Gives JAX the array."""
        return (self.stacked,), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Sequence[Any]) -> Self:
        """Makes one again from JAX's array."""
        del aux_data
        return cls(children[0])

    def __repr__(self) -> str:
        """Shows the values of this process's replicas, as ``tf.distribute`` does."""
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
    """The replica that a step runs for, by the names of ``tf.distribute.ReplicaContext``.

    Attributes:
        strategy: the strategy that runs the step; None outside any.
        num_replicas_in_sync: how many replicas share this step's batch. Smaller than the strategy's number where the
            batch does not divide over all of them.
        options: how collectives travel unless they are told otherwise.
    """

    strategy: AbstractGround | None
    num_replicas_in_sync: int
    options: CommunicationOptions

    @property
    def replica_id_in_sync_group(self) -> Any:
        """This replica's number from 0: an int32 scalar while a step is traced."""
        return 0 if self.strategy is None else jax.lax.axis_index(BATCH_AXIS)

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None) -> Any:
        """Reduces a value over all replicas; each of them gets the result.

        Arrays of one dtype travel together, in buckets. It can be differentiated: the gradient of a sum over replicas
        is the sum of their gradients.

        Args:
            reduce_op: SUM or MEAN.
            value: a pytree of arrays, of the same shapes on every replica.
            options: instead of the strategy's.

        Returns:
            The same pytree.

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
        """Concatenates a value of all replicas along a dim; each of them gets the result.

        Args:
            value: a pytree of arrays, of the same shapes on every replica.
            axis: the dim, by ``tf.distribute``'s name for it.
            options: kept for ``tf.distribute``'s signature; gathered arrays travel one by one.

        Returns:
            The same pytree, each array with its dim times the number of replicas.
        """
        del options
        if self.strategy is None:
            return value
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, BATCH_AXIS, axis=axis, tiled=True), value)


_context: ContextVar[ReplicaContext | None] = ContextVar("lockstep_replica", default=None)


@contextmanager
def replica_context(context: ReplicaContext) -> Generator[ReplicaContext]:
    """Makes a replica's context the current one."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def active_replica_context() -> ReplicaContext | None:
    """Returns the context of the step that this code is traced in, None outside ``strategy.run``."""
    return _context.get()
