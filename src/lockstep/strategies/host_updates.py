"""Steps whose state is kept and updated elsewhere than on the devices that compute.

For each step, the values that it reads are copied (lent) to the devices that compute, which return gradients. The
optimizer then runs once, where the parameters and its own state are kept. Of an optimizer's state, only scalars are
lent, because a loss reads the scale of a loss-scaling optimizer.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast, final
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from lockstep.errors import InvalidInputError
from lockstep.strategies import programs
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.step_guard import StepGuard, choose
from lockstep.strategies.updates import Update, deferred_updates, seen_gradients
from lockstep.upstream.keras_variables import set_stored_value, stored_value, trainable_variables_of

Step: TypeAlias = Callable[[Any, Any], Any]
"""A step of Keras's trainer: a function of state and batch that returns the results and the new state."""

_TRAINING_LABELS: Final = (
    programs.PARAMETERS,
    programs.OTHER_STATE,
    programs.OPTIMIZER,
    programs.OTHER_STATE,
    programs.BATCH,
)

_compiled_updates: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@final
@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class _Gradients:
    """The gradients that an optimizer is to apply, as a result of a compiled step.

    Attributes:
        arrays: the gradient of each variable that the optimizer was built for, or None.
        optimizer: the optimizer.
    """

    arrays: list[Any]
    optimizer: Any = field(metadata={"static": True})


def training_step(
    model: Any, layout: AbstractLayout, *, num_steps: Callable[[], int | None], guard: StepGuard | None = None
) -> Step:
    """Returns the function that ``fit`` runs for each batch.

    Args:
        model: a compiled model.
        layout: the layout that says where the model's state is kept.
        num_steps: a function that returns the number of steps of an epoch, once it is known.
        guard: what guards the steps, if anything does.
    """
    is_compiled = _is_compiled(model)

    def compute(trainable: Any, non_trainable: Any, scalars: Any, metrics: Any, data: Any, is_good: Any = None) -> Any:
        optimizer_values = _filled(model.optimizer.variables, scalars) if model.optimizer is not None else []
        given = trainable, non_trainable, optimizer_values, metrics
        with deferred_updates() as noted, seen_gradients() as seen:
            logs, state = model.train_step(given, data)
        _check_untouched(model.trainable_variables, trainable, state[0])
        if guard is not None:
            (logs, result), state = guard.select(logs, seen.arrays, old=given, new=state, is_good=is_good)
            logs = logs, _whole(result, layout) if is_compiled else result
        results = [_in_order(update) for update in noted], state[1], state[3]
        return logs, _whole(results, layout) if is_compiled else results

    # Nothing is donated, because the lent values belong to the layout.
    compute_step: Callable[..., Any] = jax.jit(compute) if is_compiled else compute
    announced = False

    def step(state: Any, data: Any, *is_good: Any) -> Any:
        nonlocal announced
        trainable, non_trainable, optimizer_values, metrics = state
        scalars = [value for value in optimizer_values if value.ndim == 0]
        lent = layout.to_compute_devices((list(trainable), list(non_trainable), scalars, list(metrics)))
        if is_compiled and not announced and programs.is_watched():
            announced = True
            programs.announce(
                programs.Program(
                    name=f"fit of {model.name}",
                    step=compute_step,
                    args=(*lent, data),
                    labels=_TRAINING_LABELS,
                    num_steps=num_steps(),
                    donates=False,
                )
            )
        logs, (gradients, non_trainable, metrics) = compute_step(*lent, data, *is_good)
        applies = None if guard is None else layout.to_state_devices(logs[1])
        del lent
        variables = [*model.trainable_variables, *(model.optimizer.variables if model.optimizer is not None else ())]
        kept = dict(zip(map(id, variables), [*trainable, *optimizer_values], strict=True))
        for found in gradients:
            _update(found, kept, layout=layout, applies=applies)
        values = list(kept.values())
        return logs, (
            values[: len(trainable)],
            layout.to_state_devices(list(non_trainable)),
            values[len(trainable) :],
            layout.to_state_devices(list(metrics)),
        )

    return step if guard is None else guard.run(step, replicated=layout.replicated if is_compiled else None)


def test_step(model: Any, layout: AbstractLayout) -> Step:
    """Returns the function that ``evaluate`` runs for each batch.

    Args:
        model: a compiled model.
        layout: the layout that says where the model's state is kept.
    """

    def compute(trainable: Any, non_trainable: Any, metrics: Any, data: Any) -> Any:
        logs, state = model.test_step((trainable, non_trainable, metrics), data)
        return logs, _whole(state[1:], layout) if _is_compiled(model) else state[1:]

    compute_step: Callable[..., Any] = jax.jit(compute) if _is_compiled(model) else compute

    def step(state: Any, data: Any) -> Any:
        logs, new = compute_step(*layout.to_compute_devices(tuple(map(list, state))), data)
        return logs, (state[0], *layout.to_state_devices(tuple(new)))

    return step


def predict_step(model: Any, layout: AbstractLayout) -> Step:
    """Returns the function that ``predict`` runs for each batch.

    Args:
        model: a built model.
        layout: the layout that says where the model's state is kept.
    """

    def compute(trainable: Any, non_trainable: Any, data: Any) -> Any:
        outputs, new = model.predict_step((trainable, non_trainable), data)
        return _whole((outputs, new), layout) if _is_compiled(model) else (outputs, new)

    compute_step: Callable[..., Any] = jax.jit(compute) if _is_compiled(model) else compute

    def step(state: Any, data: Any) -> Any:
        outputs, new = compute_step(*layout.to_compute_devices(tuple(map(list, state))), data)
        return outputs, (state[0], layout.to_state_devices(new))

    return step


def apply_updates(updates: Iterable[Update], *, layout: AbstractLayout) -> None:
    """Updates variables where they are kept.

    Args:
        updates: the optimizers' updates. Their gradients are on the devices that compute, the same on each.
        layout: the layout that says where the variables are kept.
    """
    for update in updates:
        _update(_in_order(update), {}, layout=layout)


def _update(found: _Gradients, kept: dict[int, Any], *, layout: AbstractLayout, applies: Any = None) -> None:
    """Updates the variables of one optimizer. If `kept` does not have a variable, the variable's own value is used.

    If `applies` is an array with False, the variables keep their values.
    """
    optimizer = found.optimizer
    trainable, own = trainable_variables_of(optimizer), list(optimizer.variables)
    values = [
        [kept.get(id(variable), stored_value(variable)) for variable in variables] for variables in (trainable, own)
    ]
    gradients = layout.to_state_devices(found.arrays)
    results = _compiled_update(optimizer)(values[0], values[1], gradients, applies)
    for variable, value in zip([*trainable, *own], [*results[0], *results[1]], strict=True):
        if id(variable) in kept:
            kept[id(variable)] = value
        else:
            set_stored_value(variable, value)


def _compiled_update(optimizer: Any) -> Any:
    compiled = _compiled_updates.get(optimizer)
    if compiled is None:
        reference = weakref.ref(optimizer)  # so that the program does not keep its optimizer alive

        def update(trainable: Any, own: Any, gradients: Any, applies: Any) -> Any:
            new = cast("Any", reference()).stateless_apply(own, gradients, trainable)
            return new if applies is None else choose(applies, new, (trainable, own))

        compiled = _compiled_updates[optimizer] = jax.jit(update, donate_argnums=(0, 1))
    return compiled


def _in_order(update: Update) -> _Gradients:
    """Arranges gradients in the order of the variables that the optimizer was built for."""
    found = {id(variable): array for variable, array in zip(update.variables, update.gradients, strict=True)}
    known = trainable_variables_of(update.optimizer)
    unknown = [variable.path for variable in update.variables if not any(variable is other for other in known)]
    if unknown:
        raise InvalidInputError(
            f"optimizer {update.optimizer.name!r} is given a variable that it was not built for",
            received=unknown[0],
            action="build it with all the variables that it is to train",
        )
    return _Gradients(arrays=[found.get(id(variable)) for variable in known], optimizer=update.optimizer)


def _filled(variables: Sequence[Any], scalars: Iterable[Any]) -> list[Any]:
    """Returns a value for each of an optimizer's variables: its scalars, and NaN for all others, which are not lent."""
    following = iter(scalars)
    return [
        next(following) if not variable.shape else jnp.full(variable.shape, jnp.nan).astype(variable.dtype)
        for variable in variables
    ]


def _check_untouched(variables: Sequence[Any], before: Sequence[Any], after: Sequence[Any]) -> None:
    for variable, old, new in zip(variables, before, after, strict=True):
        if old is not new:
            raise InvalidInputError(
                f"train_step changes variable {variable.path} itself, which is kept and updated elsewhere",
                allowed="changes by an optimizer's apply or stateless_apply alone",
            )


def _whole(values: Any, layout: AbstractLayout) -> Any:
    """Keeps values whole on every device. Without this, the compiler may divide them."""
    return jax.lax.with_sharding_constraint(values, layout.replicated)


def _is_compiled(model: Any) -> bool:
    return bool(model.jit_compile) and not model.run_eagerly
