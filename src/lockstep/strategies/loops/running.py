"""``strategy.run``: runs a step on each replica, as one program over the devices, and reduces the step's new state.

The step is traced once and mapped over the mesh's batch axis (`jax.shard_map`), so each replica runs the same code on
its own part of the batch. When the step ends, the values that the replicas assigned to a variable are reduced to one:

- Values that an optimizer assigned are the same on every replica, because gradients are summed first.
- A metric's variables (aggregation "sum") are summed. The first replica starts with the value so far, the others with
  0.
- Other floating-point variables, such as the moving statistics of batch normalisation, are averaged, as in
  ``tf.distribute``.
- Integers and booleans, and variables with aggregation "only_first_replica", keep the first replica's value.

These reductions are sent together, in buckets.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from lockstep.errors import InvalidInputError
from lockstep.strategies import updates
from lockstep.strategies.ground import AbstractGround
from lockstep.strategies.loops import collectives
from lockstep.strategies.loops.emitting import collect_emitted, emit
from lockstep.strategies.loops.lifting import Lifted, LiftedScope, current_scope
from lockstep.strategies.loops.replica import PerReplica, ReplicaContext, active_replica_context, replica_context
from lockstep.strategies.mesh import BATCH_AXIS
from lockstep.strategies.uniform import uniform_writes
from lockstep.upstream.keras_scopes import in_stateless_scope

NUM_KEPT_STEPS: Final = 64
"""The number of steps outside of lifted functions whose compiled programs are cached."""

_lifted: OrderedDict[tuple[Any, Callable[..., Any]], Lifted] = OrderedDict()


def run_on_replicas(
    strategy: AbstractGround, step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Runs a step on each replica; see `AbstractStrategy.run`."""
    if active_replica_context() is not None:
        raise InvalidInputError("strategy.run was called within a replica's step", allowed="one run at a time")
    scope = current_scope()
    if scope is None and in_stateless_scope():
        raise InvalidInputError(
            "strategy.run was called within a step that Keras runs, which stands for all replicas",
            allowed="a loop of your own: strategy.run within lockstep.function, or by itself",
        )
    if scope is None:
        return _lifted_run(strategy, step)(*args, **kwargs)
    scope.root.layouts.append(strategy.layout)
    return _trace(strategy, step, _Arguments.of(args, kwargs), scope)


def _lifted_run(strategy: AbstractGround, step: Callable[..., Any]) -> Lifted:
    key = (strategy, step)
    found = _lifted.get(key)
    if found is None:
        found = Lifted(lambda *args, **kwargs: run_on_replicas(strategy, step, args, kwargs), name=_name_of(step))
        _lifted[key] = found
        if len(_lifted) > NUM_KEPT_STEPS:
            _lifted.popitem(last=False)
    _lifted.move_to_end(key)
    return found


def _name_of(step: Callable[..., Any]) -> str:
    return str(getattr(step, "__name__", repr(step)))


@final
@dataclass(frozen=True, kw_only=True)
class _Arguments:
    """The arguments of a step, separated into replicas' own values, arrays that all replicas share, and constants."""

    leaves: list[Any]
    treedef: Any

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: dict[str, Any]) -> _Arguments:
        leaves, treedef = jax.tree.flatten((tuple(args), kwargs), is_leaf=lambda leaf: isinstance(leaf, PerReplica))
        return cls(leaves=leaves, treedef=treedef)

    @property
    def split(self) -> list[Any]:
        return [leaf.stacked for leaf in self.leaves if isinstance(leaf, PerReplica)]

    @property
    def shared(self) -> list[Any]:
        return [leaf for leaf in self.leaves if _is_array(leaf)]

    def num_shares(self, num_replicas: int) -> int:
        """Returns the number of replicas that the values are divided over."""
        shares = {leaf.num_replicas for leaf in self.leaves if isinstance(leaf, PerReplica)}
        if len(shares) > 1:
            raise InvalidInputError(
                "strategy.run was given values of batches that are divided differently",
                received=f"over {sorted(shares)} replicas",
                action="pass values of one batch",
            )
        found = shares.pop() if shares else num_replicas
        if num_replicas % found:
            raise InvalidInputError(
                "strategy.run was given another strategy's values",
                received=f"values of {found} replicas",
                allowed=f"values of {num_replicas} replicas",
            )
        return found

    def rebuild(self, split: Sequence[Any], shared: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns one replica's arguments.

        Args:
            split: this replica's part of each `PerReplica` value, of shape (1, ...).
            shared: the arrays that all replicas share.
        """
        own, common = iter(split), iter(shared)
        leaves = [
            next(own)[0] if isinstance(leaf, PerReplica) else next(common) if _is_array(leaf) else leaf
            for leaf in self.leaves
        ]
        return self.treedef.unflatten(leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def _trace(strategy: AbstractGround, step: Callable[..., Any], arguments: _Arguments, scope: LiftedScope) -> Any:
    """Maps a step over the replicas, and records its assignments in the scope."""
    layout = strategy.layout
    num_shares = arguments.num_shares(layout.num_replicas)
    options = strategy.communication_options
    context = ReplicaContext(strategy=strategy, num_replicas_in_sync=num_shares, options=options)
    written: list[Any] = []
    deferred: list[updates.Update] = []
    sets_aside = layout.updates_on_host or updates.is_deferring()

    visible = scope.visible

    def body(values: list[Any], split: list[Any], shared: list[Any]) -> dict[str, Any]:
        args, kwargs = arguments.rebuild(split, shared)
        outside = LiftedScope(scope)
        for (variable, _), value in zip(visible, values, strict=True):
            outside.set(variable, value)
        with ExitStack() as stack:
            stack.enter_context(replica_context(context))
            inner = stack.enter_context(LiftedScope(outside, entering=_initial_value))
            stack.enter_context(updates.reducing_gradients(partial(collectives.all_sum, options=options)))
            noted = stack.enter_context(updates.deferred_updates()) if sets_aside else []
            handed = stack.enter_context(collect_emitted())
            outputs = step(*args, **kwargs)
        written[:], deferred[:] = inner.written.values(), noted
        return {
            "outputs": jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs),
            "state": _reduce_state(inner, context),
            "gradients": [update.gradients for update in noted],
            "handed": [value[None] for value in handed],
        }

    mapped = jax.shard_map(
        body,
        mesh=layout.data_mesh(num_shares),
        in_specs=(PartitionSpec(), PartitionSpec(BATCH_AXIS), PartitionSpec()),
        out_specs={
            "outputs": PartitionSpec(BATCH_AXIS),
            "state": PartitionSpec(),
            "gradients": PartitionSpec(),
            "handed": PartitionSpec(BATCH_AXIS),
        },
        # Without the check, the gradient of a sum is the sum of the gradients, as in tf.distribute. This module inserts
        # the sums over replicas itself.
        check_vma=False,
    )
    results = mapped([value for _, value in visible], arguments.split, arguments.shared)
    for variable, value in zip(written, results["state"], strict=True):
        with uniform_writes():
            scope.add_update((variable, value))
    for update, gradients in zip(deferred, results["gradients"], strict=True):
        updates.append_deferred(scope.root.deferred, dataclasses.replace(update, gradients=gradients))
    for value in results["handed"]:
        emit(value)
    return jax.tree.map(PerReplica, results["outputs"])


def _is_first() -> jax.Array:
    return jax.lax.axis_index(BATCH_AXIS) == 0


def _initial_value(variable: Any, value: Any) -> Any:
    """Returns the value that a replica starts with. Of a sum, the first replica has the value so far, the others 0."""
    return jnp.where(_is_first(), value, jnp.zeros_like(value)) if variable.aggregation == "sum" else value


def _reduce_state(scope: LiftedScope, context: ReplicaContext) -> list[Any]:
    """Returns one value for each variable that a replica's step assigned, in the order of the assignments."""
    variables = list(scope.written.values())
    values = [scope.get_current_value(variable) for variable in variables]
    to_sum: dict[int, Any] = {}
    for position, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if not scope.may_differ(variable):
            continue
        if variable.aggregation == "sum" or _is_averaged(variable):
            to_sum[position] = value
        else:
            number = value.astype(jnp.int32) if value.dtype == jnp.bool_ else value
            to_sum[position] = jnp.where(_is_first(), number, jnp.zeros_like(number))
    sums = collectives.all_sum(list(to_sum.values()), options=context.options)
    for position, total in zip(to_sum, sums, strict=True):
        mean = total / context.num_replicas_in_sync if _is_averaged(variables[position]) else total
        values[position] = mean.astype(values[position].dtype)
    return values


def _is_averaged(variable: Any) -> bool:
    if variable.aggregation == "mean":
        return True
    return variable.aggregation == "none" and jnp.issubdtype(variable.value.dtype, jnp.floating)
