"""Plain JAX: compiles a pure step over pytrees as one global program over a strategy's devices.

As under ``fit``, the program computes what one device would compute: the batch is divided over the devices, and the
compiler inserts the collectives. The states of Flax and Equinox, and hand-written ones, are pytrees of arrays.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, final

import jax
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.strategies.loops.in_flight import run_in_turn
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.programs import BATCH, STATE, Program, announce, is_watched


def place_state(layout: AbstractLayout, state: Any) -> Any:
    """Places a pytree where the strategy keeps state; see `AbstractStrategy.replicate`."""

    def place(leaf: Any) -> Any:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        sharding = layout.state_sharding(np.shape(leaf))
        if layout.num_processes > 1 and not isinstance(leaf, jax.Array):
            return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
        # A copy, because a compiled step donates its state's buffers, and these may be the caller's.
        return jax.device_put(array, sharding, may_alias=False)

    return jax.tree.map(place, state)


@final
class CompiledStep:
    """A pure step over a strategy's devices. `AbstractStrategy.compile` creates it.

    Args:
        layout: the placement of state and batches.
        step: a function of state and batch. It returns the new state, or a tuple of the new state and outputs. With
            ``update``, it returns a tuple of gradients (or anything else that ``update`` takes) and outputs.
        update: a function of state and gradients that returns the new state; None if the step returns it.
        donate_state: whether the buffers of the old state may be reused for the new state. The old state cannot be used
            afterwards.

    Raises:
        InvalidInputError: the strategy updates its state on the host, and there is no ``update``.
    """

    def __init__(
        self,
        layout: AbstractLayout,
        step: Callable[[Any, Any], Any],
        *,
        update: Callable[[Any, Any], Any] | None,
        donate_state: bool,
    ) -> None:
        functools.update_wrapper(self, step)
        if layout.updates_on_host and update is None:
            raise InvalidInputError(
                f"{layout.name} updates its state on the host, which a step that does all at once cannot",
                allowed="strategy.compile(step, update=...): step(state, batch) gives gradients and outputs, "
                "update(state, gradients) the new state",
            )
        self._layout = layout
        self._step = step
        self._update = update
        self._donate = donate_state
        self._programs: dict[Hashable, tuple[Any, Any]] = {}

    def __call__(self, state: Any, batch: Any) -> Any:
        """Runs the step.

        Args:
            state: the state that `AbstractStrategy.replicate` or the previous step returned.
            batch: a pytree of arrays whose first dim is the rows: NumPy arrays, or the result of
                `AbstractStrategy.shard_batch`.

        Returns:
            The result of the step; with ``update``, the new state and the outputs.

        Raises:
            InvalidInputError: the state was not placed, or the step's first result is not a state.
        """
        _check_placed(state, self._layout)
        layout = self._layout
        placed = layout.check(batch) if layout.places_within_steps else layout.place(batch)
        # Without the shapes of the batch, because `jax.jit` handles new ones.
        key = (jax.tree.structure(state), jax.tree.structure(placed), _specs(state))
        programs = self._programs.get(key)
        if programs is None:
            programs = self._programs[key] = self._compile(state, placed)
            if is_watched():
                self._announce(programs[0], state, placed)
        compute, update = programs
        if update is None:
            return run_in_turn(compute, state, placed)
        gradients, outputs = run_in_turn(compute, self._layout.to_compute_devices(state), placed)
        if self._layout.updates_on_host:
            gradients = self._layout.to_state_devices(gradients)
        return run_in_turn(update, state, gradients), outputs

    def _announce(self, compute: Any, state: Any, batch: Any) -> None:
        announce(
            Program(
                name=str(getattr(self._step, "__name__", "step")),
                step=compute,
                args=(self._layout.to_compute_devices(state), batch),
                labels=(STATE, BATCH),
                donates=self._donate and self._update is None,
            )
        )

    def lower(self, state: Any, batch: Any) -> jax.stages.Lowered:
        """Returns the lowered program of the step, for inspection. The program is not compiled or run."""
        _check_placed(state, self._layout)
        placed = self._layout.place(batch)
        return self._compile(state, placed)[0].lower(self._layout.to_compute_devices(state), placed)

    def _compile(self, state: Any, batch: Any) -> tuple[Any, Any]:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        donated = 0 if self._donate else ()
        if self._update is None:
            found = jax.eval_shape(self._step, state, batch)
            return jax.jit(self._step, donate_argnums=donated, out_shardings=self._shardings(found, state)), None
        return jax.jit(self._step), jax.jit(self._update, donate_argnums=donated, out_shardings=shardings)

    def _shardings(self, found: Any, state: Any) -> Any:
        """Returns the shardings of the step's results: a new state like the old one, all else whole on every device."""
        shardings, structure = jax.tree.map(lambda leaf: leaf.sharding, state), jax.tree.structure(state)
        if jax.tree.structure(found) == structure:
            return shardings
        if isinstance(found, tuple) and found and jax.tree.structure(found[0]) == structure:
            return (shardings, *[self._layout.replicated] * (len(found) - 1))
        raise InvalidInputError(
            "a step's first result is not a state of the form that it was given",
            received=str(jax.tree.structure(found)),
            allowed=f"{structure}, or a tuple that begins with it",
        )


def _check_placed(state: Any, layout: AbstractLayout) -> None:
    devices = set(layout.state_devices)
    for leaf in jax.tree.leaves(state):
        is_array = isinstance(leaf, jax.Array)
        if not is_array or leaf.sharding.device_set != devices:
            raise InvalidInputError(
                "a compiled step's state has to lie where the strategy keeps it",
                received=f"an array on {len(leaf.sharding.device_set)} devices" if is_array else type(leaf).__name__,
                allowed="arrays from strategy.replicate(state), or from the step before",
            )


def _specs(tree: Any) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))
