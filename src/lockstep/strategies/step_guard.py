"""Checks within each training step that its loss and its gradients are finite, and keeps the old state if not.

The check is part of the compiled step, so it costs no transfer and no wait. The host reads a step's result when
`NUM_UNREAD` later steps have begun: in all processes at the same step, so that they decide alike.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding

from lockstep.strategies.updates import seen_gradients

NUM_UNREAD: Final = 2
"""The number of steps that may be in flight before the host reads the result of the first one."""
_METRICS: Final = 3
"""The position of the metrics' variables in the state of Keras's training step."""


@final
@dataclass(frozen=True, kw_only=True)
class BadStep:
    """A step whose loss or gradients were not finite.

    Attributes:
        number: the number of steps of this ``fit`` before it.
        batch: its batch: a structure of arrays.
    """

    number: int
    batch: Any


@final
class StepGuard:
    """Guards the training steps of one ``fit``.

    Args:
        model: the model.
        freezes: whether all steps after a bad one keep the old state too, so that the state stays that before the bad
            step. Otherwise, only bad steps do.
    """

    def __init__(self, model: Any, *, freezes: bool) -> None:
        self._model = model
        self._freezes = freezes
        self._is_good: Any = np.True_
        self._unread: deque[tuple[int, Any, Any]] = deque()
        self._num_steps = 0

    def guarded(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        """Returns a step that checks itself: a function of state, batch, and whether all steps before were good.

        It returns the outputs with the result of the check, and the state.

        Args:
            step: a step of Keras's trainer: a function of state and batch that returns outputs and the new state.
        """

        def guarded_step(state: Any, data: Any, is_good: Any) -> Any:
            with seen_gradients() as seen:
                outputs, new_state = step(state, data)
            return self.select(outputs, seen.arrays, old=state, new=new_state, is_good=is_good)

        return guarded_step

    def select(self, outputs: Any, gradients: Sequence[Any], *, old: Any, new: Any, is_good: Any) -> Any:
        """Chooses between the old and the new state.

        Args:
            outputs: the outputs of the step.
            gradients: the gradients that optimizers were given.
            old: the state before the step, in Keras's groups.
            new: the state after it.
            is_good: whether all steps before were good.

        Returns:
            The outputs with the result of the check, and the state.
        """
        has_finite_loss = _is_finite(_loss_in(outputs))
        is_finite = has_finite_loss & _is_finite(gradients)
        scale = self._loss_scale(new)
        if scale is not None:  # the optimizer itself skips a step that overflows, and makes the scale smaller
            is_finite = is_finite | (scale > 1)
        result = is_finite & is_good if self._freezes else is_finite
        groups = [
            choose(result & has_finite_loss if number == _METRICS else result, list(after), list(before))
            for number, (before, after) in enumerate(zip(old, new, strict=True))
        ]
        return (outputs, result), tuple(groups)

    def run(
        self, step: Callable[[Any, Any, Any], Any], *, replicated: NamedSharding | None = None
    ) -> Callable[[Any, Any], Any]:
        """Returns a step for Keras's loop, which notes the results of the checks.

        Args:
            step: the result of `guarded`, compiled or not.
            replicated: the sharding of the result of a check; None if the step does not lay it out.
        """
        if self._freezes and replicated is not None:
            # Laid out as the results of steps are: otherwise, the second step would be compiled anew.
            self._is_good = jax.jit(partial(jnp.array, True), out_shardings=replicated)()

        def noting_step(state: Any, data: Any) -> Any:
            (outputs, result), state = step(state, data, self._is_good)
            if self._freezes:
                self._is_good = result
            self._unread.append((self._num_steps, data, result))
            self._num_steps += 1
            return outputs, state

        return noting_step

    @property
    def num_steps(self) -> int:
        """The number of steps so far."""
        return self._num_steps

    def read(self, *, num_unread: int = NUM_UNREAD) -> list[BadStep]:
        """Returns the bad steps that were not returned before. Waits until they are computed.

        Args:
            num_unread: the number of latest steps that are not waited for.
        """
        found: list[BadStep] = []
        while len(self._unread) > num_unread:
            number, batch, result = self._unread.popleft()
            if not bool(result):
                found.append(BadStep(number=number, batch=batch))
                if self._freezes:
                    self._unread.clear()  # those after it were not applied
        return found

    def _loss_scale(self, state: Any) -> Any | None:
        optimizer = self._model.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        scale = optimizer.dynamic_scale
        place = next(number for number, variable in enumerate(optimizer.variables) if variable is scale)
        return list(state[2])[place]


def _loss_in(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, dict) else None


def _is_finite(values: Any) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(values) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.bool_(True)


def choose(condition: Any, one: Any, other: Any) -> Any:
    """Returns one structure of arrays if a condition holds, and the other one if it does not.

    Args:
        condition: a boolean array without dims.
        one: the first structure.
        other: a structure of the same form.
    """

    def select(first: Any, second: Any) -> Any:
        return jnp.where(condition, first, second)

    return jax.tree.map(select, one, other)
