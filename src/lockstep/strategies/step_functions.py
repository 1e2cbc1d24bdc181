"""The functions that Keras's loops call for each execution: they run a strategy's step on batches one by one.

Keras's loop calls ``function(state, iterator)``, which returns outputs and the next state. Keras's own functions do not
know a strategy's steps, and since Keras 3.16 they stack the batches of an execution.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, final

import jax
import jax.numpy as jnp
import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies import host_updates, programs, stateful_steps
from lockstep.strategies.epochs import current_call
from lockstep.strategies.gradient_sums import in_buckets, sums_in_buckets
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.state_groups import StateGroup
from lockstep.strategies.step_guard import StepGuard

Step: TypeAlias = Callable[[Any, Any], Any]
"""A function of state and batch that returns logs or outputs, and the new state."""

_STATE_LABELS: Final = (programs.PARAMETERS, programs.OTHER_STATE, programs.OPTIMIZER, programs.OTHER_STATE)
"""The labels of Keras's training state: trainable, non-trainable, optimizer's and metrics' variables."""


@final
class StepFunction:
    """A step as a function that Keras's loop can call.

    Args:
        step: the step.
        num_steps: the number of steps of an execution (Keras's ``steps_per_execution``). It runs fewer if the batches
            end.
        concatenates: whether to concatenate the rows of the outputs of an execution's steps. Otherwise, the outputs of
            the last step are returned.
        group: a function of Keras's lists of values that returns the state that the step takes; None if it takes lists.
        guard: what guards the steps, if anything does.
    """

    def __init__(
        self,
        step: Step,
        *,
        num_steps: int,
        concatenates: bool,
        group: Callable[[Any], Any] | None = None,
        guard: StepGuard | None = None,
    ) -> None:
        self._step = step
        self.guard = guard
        self._group = group
        self._num_steps = num_steps
        self._concatenates = concatenates

    def __call__(self, state: Any, iterator: Iterator[Any]) -> Any:
        """Runs an execution.

        Args:
            state: the values of the model's variables, in groups.
            iterator: an iterator over batches, with at least one batch.

        Returns:
            Logs or outputs, and the new state.
        """
        if self._group is not None and not isinstance(state[0], StateGroup):  # in an epoch's first step
            state = self._group(state)
        outputs, state = self._step(state, next(iterator))
        found = [outputs]
        for batch in itertools.islice(iterator, self._num_steps - 1):
            outputs, state = self._step(state, batch)
            found = [*found, outputs] if self._concatenates else [outputs]
        return found[0] if len(found) == 1 else keras.tree.map_structure(_join, *found), state


def _join(*parts: Any) -> Any:
    return jnp.concatenate(parts)


def make_step_function(model: Any, kind: str, layout: AbstractLayout | None) -> StepFunction:
    """Returns the function that a loop of Keras calls for a model.

    Args:
        model: a built model.
        kind: "train", "test" or "predict".
        layout: the layout of the model's variables; None without a strategy.
    """
    group: Callable[[Any], Any] | None = None
    guard = guard_of(model, kind)
    if stateful_steps.is_stateful(model, kind):
        if guard is not None:
            raise InvalidInputError(
                "a guard of training steps needs a step that takes the state",
                received=f"{type(model).__name__}.train_step(self, data)",
                allowed="train_step(self, state, data), as Keras 3 has it on JAX",
            )
        step: Step = stateful_steps.get_step(model, kind, layout)
    elif layout is not None and layout.updates_on_host:
        step = _host_step(model, kind, layout, guard)
    else:
        shardings = _shardings(model, kind, layout)
        step = _step(model, kind, layout, guard=guard, shardings=shardings)
        if _is_compiled(model):
            group = functools.partial(_grouped, shardings=shardings)
        if kind == stateful_steps.TRAIN and programs.is_watched():
            step = _announcing(model, step)
    return StepFunction(
        step,
        num_steps=model.steps_per_execution,
        concatenates=kind == stateful_steps.PREDICT,
        group=group,
        guard=guard,
    )


def guard_of(model: Any, kind: str) -> StepGuard | None:
    """Returns what guards the training steps of a model in the current ``fit``; None if nothing does.

    Args:
        model: the model.
        kind: "train", "test" or "predict".
    """
    call = current_call()
    guards = call is not None and call.model is model and kind == stateful_steps.TRAIN
    return call.guard if call is not None and guards else None


def _is_compiled(model: Any) -> bool:
    return bool(model.jit_compile) and not model.run_eagerly


def _shardings(model: Any, kind: str, layout: AbstractLayout | None) -> tuple[StateGroup, ...] | None:
    if layout is None:
        return None
    groups = stateful_steps.state_of(model, kind)
    return tuple(StateGroup(variable.value.sharding for variable in group) for group in groups)


def _grouped(state: Any, *, shardings: tuple[StateGroup, ...] | None) -> tuple[StateGroup, ...]:
    """Returns the state in groups, with every array committed to its devices.

    New variables and metrics that were reset are not committed, and the results of a step are. Without this, the step
    would be compiled again for each of these combinations.
    """
    if shardings is None:
        return tuple(StateGroup(group) for group in state)
    return tuple(
        StateGroup(
            value if value.committed else jax.device_put(value, sharding)
            for value, sharding in zip(group, group_shardings, strict=True)
        )
        for group, group_shardings in zip(state, shardings, strict=True)
    )


def _step(
    model: Any,
    kind: str,
    layout: AbstractLayout | None,
    *,
    guard: StepGuard | None,
    shardings: tuple[StateGroup, ...] | None,
) -> Step:
    is_compiled = _is_compiled(model)
    step: Callable[..., Any] = getattr(model, f"{kind}_step")
    if kind == stateful_steps.PREDICT:
        step = _predicting(model, layout if is_compiled else None)
    if guard is not None:
        step = guard.guarded(step)
    if not is_compiled:
        return step if guard is None else guard.run(step)
    if kind == stateful_steps.TRAIN and layout is not None and sums_in_buckets(layout):
        step = in_buckets(step, layout)
    of_outputs = None if guard is None or layout is None else (None, layout.replicated)
    out_shardings = None if shardings is None else (of_outputs, shardings)

    @functools.wraps(step)
    def step_in_groups(state: Any, data: Any, *more: Any) -> Any:
        outputs, new_state = step(tuple(list(group) for group in state), data, *more)
        return outputs, tuple(StateGroup(group) for group in new_state)

    compiled = jax.jit(step_in_groups, donate_argnums=0, out_shardings=out_shardings)
    return compiled if guard is None else guard.run(compiled, replicated=None if layout is None else layout.replicated)


def _predicting(model: Any, layout: AbstractLayout | None) -> Step:
    """Returns a step that copies each batch's outputs to every device, so that any process can read them.

    Otherwise, the compiler would divide an uneven batch's outputs in a way that the variables' mesh cannot describe.
    """

    def predict_step(state: Any, data: Any) -> Any:
        outputs, non_trainable_variables = model.predict_step(state, data)
        if layout is not None:
            outputs = jax.lax.with_sharding_constraint(outputs, layout.replicated)
        return outputs, (state[0], non_trainable_variables)

    return predict_step


def _host_step(model: Any, kind: str, layout: AbstractLayout, guard: StepGuard | None) -> Step:
    if kind == stateful_steps.TRAIN:
        return host_updates.training_step(model, layout, num_steps=_num_steps, guard=guard)
    return {stateful_steps.TEST: host_updates.test_step, stateful_steps.PREDICT: host_updates.predict_step}[kind](
        model, layout
    )


def _num_steps() -> int | None:
    call = current_call()
    return None if call is None else call.num_steps


def _announcing(model: Any, step: Step) -> Step:
    """Returns a training step that is announced right before its first run."""
    announced = False

    @functools.wraps(step)
    def announced_step(state: Any, data: Any) -> Any:
        nonlocal announced
        if not announced:
            announced = True
            programs.announce(
                programs.Program(
                    name=f"fit of {model.name}",
                    step=step,
                    args=(state, data),
                    labels=(_STATE_LABELS, programs.BATCH),
                    num_steps=_num_steps(),
                )
            )
        return step(state, data)

    return announced_step
