"""The wrapper around Keras's optimizers: what happens to gradients before they update anything.

A call of ``apply`` (or ``apply_gradients``, or ``stateless_apply``) does one of three things here:

- Within `reducing_gradients` (a replica's step under ``strategy.run``), gradients are summed over the replicas first,
  as ``tf.distribute`` does in a replica context.
- Within `deferred_updates`, nothing is updated. Optimizer and gradients are recorded for the code that entered the
  block, which updates the parameters where they are kept (`CentralStorageStrategy`, and parameter servers).
- Otherwise, Keras's own method runs.

Only the outermost call counts, because a loss-scaling optimizer calls the optimizer that it wraps.

The module also records which optimizers were built in this process, for code that needs them before they are applied.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final
from weakref import WeakSet

import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies.gradient_sums import mark_gradients
from lockstep.strategies.sharding import current_sharded_layout
from lockstep.strategies.uniform import uniform_writes
from lockstep.upstream.keras_variables import trainable_variables_of


@final
class NotUpdatedError(InvalidInputError):
    """A step continues with parameters whose update was deferred."""


Gradients: TypeAlias = Sequence[Any]
"""An array for each variable; None if the loss does not depend on the variable."""


@final
@dataclass(frozen=True, kw_only=True)
class Update:
    """An update that was deferred.

    Attributes:
        optimizer: the outermost optimizer that was to apply it.
        gradients: the gradient of each variable.
        variables: the variables that the gradients belong to, in the same order.
    """

    optimizer: Any
    gradients: Gradients
    variables: Sequence[Any]


@final
@dataclass(kw_only=True)
class _Handling:
    """What happens to gradients in the current context.

    Attributes:
        reduce: the function that sums gradients over the replicas; None to leave them unchanged.
        deferred: the list that receives deferred updates; None to update at once.
        inside: whether an optimizer is being applied already. Its inner calls run unchanged.
    """

    reduce: Callable[[Gradients], Gradients] | None = None
    deferred: list[Update] | None = None
    inside: bool = field(default=False)


@final
@dataclass(kw_only=True)
class SeenGradients:
    """The gradients that optimizers were given.

    Attributes:
        arrays: the gradients. Those for a loss-scaling optimizer are left out, because it checks them itself.
        are_scaled: whether there was such an optimizer.
    """

    arrays: list[Any] = field(default_factory=list[Any])
    are_scaled: bool = False

    def add(self, optimizer: Any, gradients: Any) -> None:
        """Records the gradients for an optimizer."""
        self.are_scaled = self.are_scaled or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if not self.are_scaled:  # the inner optimizer is called within a branch, whose values may not leave it
            self.arrays.extend(gradient for gradient in gradients if gradient is not None)


_handling: ContextVar[_Handling | None] = ContextVar("lockstep_gradients", default=None)
_seen: ContextVar[SeenGradients | None] = ContextVar("lockstep_seen_gradients", default=None)
_applied: WeakSet[Any] = WeakSet()
_built: list[weakref.ref[Any]] = []


@contextmanager
def reducing_gradients(reduce: Callable[[Gradients], Gradients]) -> Generator[None]:
    """Makes each optimizer within the block sum its gradients over the replicas before it applies them.

    Args:
        reduce: a function that sums a list of gradients, in the order of the variables, over the replicas. It is called
            once for each update.
    """
    outer = _handling.get()
    handling = _Handling(reduce=reduce, deferred=outer.deferred if outer is not None else None)
    token = _handling.set(handling)
    try:
        yield
    finally:
        _handling.reset(token)


@contextmanager
def deferred_updates(updates: list[Update] | None = None) -> Generator[list[Update]]:
    """Makes optimizers within the block update nothing. Yields a list that receives their updates, in order.

    Args:
        updates: the list. By default, a new one.

    Raises:
        NotUpdatedError: an optimizer is used twice within the block. Its second gradients would be computed from
            parameters that are not updated yet.
    """
    updates = [] if updates is None else updates
    outer = _handling.get()
    token = _handling.set(_Handling(reduce=outer.reduce if outer is not None else None, deferred=updates))
    try:
        yield updates
    finally:
        _handling.reset(token)


@contextmanager
def seen_gradients() -> Generator[SeenGradients]:
    """Yields the gradients that optimizers within the block are given."""
    seen = SeenGradients()
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def _show(optimizer: Any, gradients: Any) -> None:
    seen = _seen.get()
    if seen is not None:
        seen.add(optimizer, gradients)


def is_deferring() -> bool:
    """Whether this code runs within `deferred_updates`, so that optimizers update nothing."""
    handling = _handling.get()
    return handling is not None and handling.deferred is not None


def defer(update: Update) -> None:
    """Records an update whose gradients come from a compiled program, in the current `deferred_updates` block.

    Raises:
        NotUpdatedError: the list has an update of this optimizer already.
    """
    handling = _handling.get()
    assert handling is not None, "within deferred_updates"
    assert handling.deferred is not None, "within deferred_updates"
    append_deferred(handling.deferred, update)


@contextmanager
def _at_work(handling: _Handling) -> Generator[None]:
    handling.inside = True
    try:
        with uniform_writes():  # the gradients are the same on every replica now
            yield
    finally:
        handling.inside = False


def append_deferred(updates: list[Update], update: Update) -> None:
    """Adds an update to a list of deferred updates.

    Raises:
        NotUpdatedError: the list has an update of this optimizer already.
    """
    if any(other.optimizer is update.optimizer for other in updates):
        raise NotUpdatedError(
            f"optimizer {update.optimizer.name!r} is applied twice in one step, and this strategy updates once a step",
            allowed="one update for each optimizer in a step",
            action="sum the gradients first, or use one optimizer for each set of variables",
        )
    updates.append(update)


def check_up_to_date(variable: Any, noted: Sequence[Update]) -> None:
    """Checks that a variable which is read or assigned has no deferred update.

    Args:
        variable: the variable.
        noted: the updates that were deferred before the current context.

    Raises:
        NotUpdatedError: the variable has a deferred update. The code would read the old value, or the update would
            overwrite its assignment.
    """
    handling = _handling.get()
    pending = [*noted, *((handling.deferred or ()) if handling is not None else ())]
    if any(variable is other for update in pending for other in update.variables):
        raise NotUpdatedError(
            f"a step reads or assigns variable {variable.path} after an optimizer was applied to it, and this strategy "
            "updates it when the step has ended",
            action="do that before the optimizer is applied, or in another lockstep.function",
        )


def is_of_optimizer(variable: Any) -> bool:
    """Whether a variable belongs to an optimizer that was applied in this process."""
    return any(variable is own for optimizer in _applied for own in optimizer.variables)


def built_optimizers() -> list[Any]:
    """Returns the optimizers that were built in this process and still exist, in the order in which they were built."""
    return [optimizer for reference in list(_built) if (optimizer := reference()) is not None]


def wrap_build(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``build`` so that it records the optimizer, and warns of a layout map that does not fit the model."""

    @functools.wraps(build)
    def wrapper(self: Any, variables: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(reference() is self for reference in _built):
            _built.append(weakref.ref(self, _built.remove))
        sharding = current_sharded_layout()
        if sharding is not None:
            sharding.warn_of_map(variables)  # now, because the model's variables exist
        return build(self, variables, *args, **kwargs)

    return wrapper


def wrap_apply(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``apply`` so that it handles gradients as the context says (see the module's docstring)."""

    @functools.wraps(apply)
    def wrapper(self: Any, grads: Any, trainable_variables: Any = None, *args: Any, **kwargs: Any) -> Any:
        _applied.add(self)
        _show(self, grads)
        grads = mark_gradients(grads)
        handling = _handling.get()
        if handling is None and isinstance(self, keras.optimizers.LossScaleOptimizer):
            handling = _Handling()  # because its own code fails if values are traced
        if handling is None or handling.inside:
            return apply(self, grads, trainable_variables, *args, **kwargs)
        given = list(trainable_variables_of(self) if trainable_variables is None else trainable_variables)
        if handling.reduce is not None:
            _check_sums(given)
        gradients = list(grads) if handling.reduce is None else list(handling.reduce(list(grads)))
        if not self.built:
            # The scope gives the variables the names that Keras gives them.
            with keras.name_scope(self.name, caller=self):
                self.build(given)
            self.built = True
        if handling.deferred is not None:
            append_deferred(handling.deferred, Update(optimizer=self, gradients=gradients, variables=given))
            return None
        with _at_work(handling):
            if isinstance(self, keras.optimizers.LossScaleOptimizer):
                return _apply_scaled(self, gradients, given)
            return apply(self, gradients, trainable_variables, *args, **kwargs)

    return wrapper


def _check_sums(variables: Sequence[Any]) -> None:
    """Checks that the sum over replicas is the gradient of each variable."""
    odd = next((one.path for one in variables if getattr(one, "overwrite_with_gradient", False)), None)
    if odd is not None:
        raise InvalidInputError(
            "strategy.run sums gradients over the replicas, but a float8 layer's are new values of its scales",
            received=odd,
            action='train with fit, or without model.quantize("float8")',
        )


def _apply_scaled(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Applies scaled gradients with values. Keras's own code would assign variables within traced branches."""
    known = trainable_variables_of(optimizer)
    by_id = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
    missing = [variable.path for variable in known if by_id.get(id(variable)) is None]
    if missing:
        raise InvalidInputError(
            "a loss-scaling optimizer takes a gradient for every variable that it was built for",
            received=f"none for {missing[0]}",
            allowed=f"{len(known)} gradients",
        )
    new_trainable, new_own = optimizer.stateless_apply(
        [variable.value for variable in optimizer.variables],
        [by_id[id(variable)] for variable in known],
        [variable.value for variable in known],
    )
    for variable, value in zip([*known, *optimizer.variables], [*new_trainable, *new_own], strict=True):
        variable.assign(value)


def wrap_stateless_apply(stateless_apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``stateless_apply`` so that it handles gradients as the context says (see the module's docstring)."""

    @functools.wraps(stateless_apply)
    def wrapper(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any, *args: Any, **kwargs: Any
    ) -> Any:
        _show(self, grads)
        grads = mark_gradients(grads)
        handling = _handling.get()
        if handling is None or handling.inside:
            return stateless_apply(self, optimizer_variables, grads, trainable_variables, *args, **kwargs)
        gradients = list(grads) if handling.reduce is None else list(handling.reduce(list(grads)))
        if handling.deferred is not None:
            known = trainable_variables_of(self)
            append_deferred(handling.deferred, Update(optimizer=self, gradients=gradients, variables=known))
            return list(trainable_variables), list(optimizer_variables)
        with _at_work(handling):
            return stateless_apply(self, optimizer_variables, gradients, trainable_variables, *args, **kwargs)

    return wrapper
