"""The one wrapper around Keras's optimizers: what happens to gradients before they update anything.

A call of ``apply`` (or ``apply_gradients``, or ``stateless_apply``) does one of three things here:

- within `reducing_gradients` (a replica's step under ``strategy.run``), gradients are summed over the replicas first,
  as ``tf.distribute`` does in a replica context;
- within `deferred_updates`, nothing is updated: optimizer and gradients are noted for whoever entered it, which updates
  the parameters where they are kept (`CentralStorageStrategy`, and parameter servers);
- elsewhere Keras's own method runs.

Only the outermost call counts: a loss-scaling optimizer calls the one that it wraps.

Which optimizers were built in this process is noted as well, for who has to know them before they are applied.
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
from lockstep.strategies.sharding import current_sharded_layout
from lockstep.strategies.uniform import uniform_writes
from lockstep.upstream.keras_variables import trainable_variables_of


@final
class NotUpdatedError(InvalidInputError):
    """A step goes on with parameters whose update was set aside."""


Gradients: TypeAlias = Sequence[Any]
"""An array for each variable, None where the loss does not depend on it."""


@final
@dataclass(frozen=True, kw_only=True)
class Update:
    """An update that was set aside.

    Attributes:
        optimizer: the outermost optimizer that was to apply it.
        gradients: one for each variable.
        variables: the variables that the gradients belong to, in the same order.
    """

    optimizer: Any
    gradients: Gradients
    variables: Sequence[Any]


@final
@dataclass(kw_only=True)
class _Handling:
    """What becomes of gradients in the current context.

    Attributes:
        reduce: sums gradients over the replicas; None leaves them as they are.
        deferred: where updates are noted instead of done; None does them.
        inside: whether an optimizer is at work already, whose inner calls are left alone.
    """

    reduce: Callable[[Gradients], Gradients] | None = None
    deferred: list[Update] | None = None
    inside: bool = field(default=False)


_handling: ContextVar[_Handling | None] = ContextVar("lockstep_gradients", default=None)
_applied: WeakSet[Any] = WeakSet()
_built: list[weakref.ref[Any]] = []


@contextmanager
def reducing_gradients(reduce: Callable[[Gradients], Gradients]) -> Generator[None]:
    """Within, each optimizer sums its gradients over the replicas before it applies them.

    Args:
        reduce: the sum over the replicas, of a list in the variables' order; called once for each update.
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
    """Within, optimizers update nothing: the list that it yields gets what they were to do, in order.

    Args:
        updates: that list; a new one by default.

    Raises:
        NotUpdatedError: an optimizer is used twice within: its second gradients would stand on parameters that were
            not updated yet.
    """
    updates = [] if updates is None else updates
    outer = _handling.get()
    token = _handling.set(_Handling(reduce=outer.reduce if outer is not None else None, deferred=updates))
    try:
        yield updates
    finally:
        _handling.reset(token)


def is_deferring() -> bool:
    """Whether optimizers update nothing here, since somebody has entered `deferred_updates`."""
    handling = _handling.get()
    return handling is not None and handling.deferred is not None


def defer(update: Update) -> None:
    """Notes an update whose gradients a compiled program gave, as `deferred_updates` does with one that is applied.

    Raises:
        NotUpdatedError: its optimizer has one already.
    """
    handling = _handling.get()
    assert handling is not None, "within deferred_updates"
    assert handling.deferred is not None, "within deferred_updates"
    note(handling.deferred, update)


@contextmanager
def _at_work(handling: _Handling) -> Generator[None]:
    handling.inside = True
    try:
        with uniform_writes():  # every replica has the same gradients now
            yield
    finally:
        handling.inside = False


def note(updates: list[Update], update: Update) -> None:
    """Adds an update to those that were set aside.

    Raises:
        NotUpdatedError: its optimizer has one already.
    """
    if any(other.optimizer is update.optimizer for other in updates):
        raise NotUpdatedError(
            f"optimizer {update.optimizer.name!r} is applied twice in one step, and this strategy updates once a step",
            allowed="one update for each optimizer in a step",
            action="sum the gradients first, or use one optimizer for each set of variables",
        )
    updates.append(update)


def check_up_to_date(variable: Any, noted: Sequence[Update]) -> None:
    """Checks that code which reads or assigns a variable does not follow an update that was set aside.

    Args:
        variable: the variable.
        noted: updates that were set aside before the current context.

    Raises:
        NotUpdatedError: it does: the code would see the value before the update, or be undone by it.
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
    """Returns the optimizers that were built in this process and are still there, in the order in which they were."""
    return [optimizer for reference in list(_built) if (optimizer := reference()) is not None]


def building(build: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``build`` note the optimizer, and warn of patterns of a layout map that no variable matches."""

    @functools.wraps(build)
    def wrapper(self: Any, variables: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(reference() is self for reference in _built):
            _built.append(weakref.ref(self, _built.remove))
        sharding = current_sharded_layout()
        if sharding is not None:
            sharding.warn_of_unmatched(variables)  # the model's variables are there now
        return build(self, variables, *args, **kwargs)

    return wrapper


def applying(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``apply`` do with gradients what the context says (see the module)."""

    @functools.wraps(apply)
    def wrapper(self: Any, grads: Any, trainable_variables: Any = None, *args: Any, **kwargs: Any) -> Any:
        _applied.add(self)
        handling = _handling.get()
        if handling is None and isinstance(self, keras.optimizers.LossScaleOptimizer):
            handling = _Handling()  # its own code fails wherever values are traced
        if handling is None or handling.inside:
            return apply(self, grads, trainable_variables, *args, **kwargs)
        given = list(trainable_variables_of(self) if trainable_variables is None else trainable_variables)
        gradients = list(grads) if handling.reduce is None else list(handling.reduce(list(grads)))
        if not self.built:
            # Keras's own names for what it builds here.
            with keras.name_scope(self.name, caller=self):
                self.build(given)
            self.built = True
        if handling.deferred is not None:
            note(handling.deferred, Update(optimizer=self, gradients=gradients, variables=given))
            return None
        with _at_work(handling):
            if isinstance(self, keras.optimizers.LossScaleOptimizer):
                return _apply_scaled(self, gradients, given)
            return apply(self, gradients, trainable_variables, *args, **kwargs)

    return wrapper


def _apply_scaled(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Applies scaled gradients by way of values: Keras's branches on finite gradients would write from within them."""
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


def applying_statelessly(stateless_apply: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``stateless_apply`` do with gradients what the context says (see the module)."""

    @functools.wraps(stateless_apply)
    def wrapper(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any, *args: Any, **kwargs: Any
    ) -> Any:
        handling = _handling.get()
        if handling is None or handling.inside:
            return stateless_apply(self, optimizer_variables, grads, trainable_variables, *args, **kwargs)
        gradients = list(grads) if handling.reduce is None else list(handling.reduce(list(grads)))
        if handling.deferred is not None:
            known = trainable_variables_of(self)
            note(handling.deferred, Update(optimizer=self, gradients=gradients, variables=known))
            return list(trainable_variables), list(optimizer_variables)
        with _at_work(handling):
            return stateless_apply(self, optimizer_variables, gradients, trainable_variables, *args, **kwargs)

    return wrapper
