"""What decides the next step of a training run: variables, random state, position in the data."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self, final

import keras
import numpy as np
from keras.src.random import seed_generator  # there is no public way to this state

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.strategies import fitting
from lockstep.strategies.gathering import whole_value

METRICS: Final = "metrics"
RANDOM: Final = "random"
_KERAS_SEED: Final = "keras_seed"
_MODEL_GROUPS: Final = ("trainable", "non_trainable", "optimizer", METRICS)


@final
@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a training run stands.

    Attributes:
        epoch: epochs that are finished.
        batch: batches of the running epoch that are finished; 0 between two epochs.
        step: batches since training began, over all epochs.
        order: what decides which records each batch has, by name, as JSON; None where the data does not say.
    """

    epoch: int
    batch: int
    step: int
    order: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Reads a position from a JSON object.

        Raises:
            CorruptDataError: it is not one.
        """
        match document:
            case {"epoch": int(epoch), "batch": int(batch), "step": int(step), "order": None | dict() as order}:
                return cls(epoch=epoch, batch=batch, step=step, order=order)
            case _:
                allowed = "epoch, batch, step, order"
                raise CorruptDataError("a checkpoint's position", received=document, allowed=allowed)

    def to_json(self) -> dict[str, Any]:
        """Returns the position as a JSON object."""
        return asdict(self)


@final
@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Copies of everything that decides the next step.

    Attributes:
        position: where the run stands.
        arrays: by group ("trainable", "non_trainable", "optimizer", "metrics", "random"), then by the variable's number
            in the model; on the host.
        paths: the variables' names in the same order, to tell one model from another.
        generators: the state of Python's and NumPy's random generators, as JSON.
    """

    position: Position
    arrays: Mapping[str, Mapping[str, np.ndarray]]
    paths: Mapping[str, list[str]]
    generators: Mapping[str, Any]

    @classmethod
    def capture(cls, model: Any, *, position: Position) -> Self:
        """Copies a model's state to the host.

        Where variables are cut over the devices of several processes, every process has to call this, and waits for the
        others; elsewhere one process may do it alone.

        Args:
            model: a built model whose optimizer is built too.
            position: where the run stands.
        """
        # During `fit` Keras keeps the variables' values in the state that its steps pass on.
        model.jax_state_sync()
        groups = _variables(model)
        arrays = {name: _copies(variables) for name, variables in groups.items()}
        arrays[RANDOM] = {_KERAS_SEED: np.array(seed_generator.global_seed_generator().state.value)}
        name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
        version, words, gauss = random.getstate()
        return cls(
            position=position,
            arrays=arrays,
            paths={name: [variable.path for variable in variables] for name, variables in groups.items()},
            generators={
                "python": [version, list(words), gauss],
                "numpy": [name, np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
            },
        )

    def apply(self, model: Any) -> None:
        """Gives a model and the process's random generators this state, under whatever strategy the model is.

        Metrics are left out: Keras resets them when an epoch begins, so `apply_metrics` follows then. An optimizer that
        is not built yet, as before a first step, is built.

        Raises:
            InvalidInputError: the state is another model's, or another strategy than the model's is current.
        """
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built and len(self.paths["optimizer"]) > len(optimizer.variables):
            with fitting.scope_of(model), keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(model.trainable_variables)
        groups = _variables(model)
        for name, variables in groups.items():
            self._check(name, variables)
        for name in _MODEL_GROUPS:
            if name != METRICS:
                self._assign(name, groups[name])
        seed = self.arrays[RANDOM].get(_KERAS_SEED)
        if seed is not None:
            seed_generator.global_seed_generator().state.assign(seed)
        version, words, gauss = self.generators["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, place, has_gauss, cached = self.generators["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), place, has_gauss, cached))

    def apply_metrics(self, model: Any) -> None:
        """Gives a model's metrics what they had counted of the running epoch."""
        variables = _variables(model)[METRICS]
        self._check(METRICS, variables)
        self._assign(METRICS, variables)

    def _assign(self, name: str, variables: list[Any]) -> None:
        saved = self.arrays.get(name, {})
        for number, variable in enumerate(variables):
            value = saved.get(str(number))
            if value is not None:
                variable.assign(value)

    def _check(self, name: str, variables: list[Any]) -> None:
        saved = self.arrays.get(name, {})
        shapes = [tuple(saved[str(n)].shape) if str(n) in saved else None for n in range(len(self.paths[name]))]
        wanted = [tuple(variable.shape) if 0 not in variable.shape else None for variable in variables]
        if shapes == wanted:
            return
        differing = next((n for n, (a, b) in enumerate(zip(shapes, wanted, strict=False)) if a != b), None)
        if differing is None:
            received, allowed = f"{len(shapes)} {name} variables", f"{len(wanted)}, as the model has"
        else:
            received = f"{self.paths[name][differing]} of shape {shapes[differing]}"
            allowed = f"{variables[differing].path} of shape {wanted[differing]}"
        raise InvalidInputError(
            f"the checkpoint is of another model: {name} variables differ",
            received=received,
            allowed=allowed,
            action="name another directory, or delete this one to train from the beginning",
        )


def _variables(model: Any) -> dict[str, list[Any]]:
    return {
        "trainable": list(model.trainable_variables),
        "non_trainable": list(model.non_trainable_variables),
        "optimizer": list(model.optimizer.variables) if model.optimizer is not None else [],
        METRICS: list(model.metrics_variables),
    }


def _copies(variables: list[Any]) -> dict[str, np.ndarray]:
    # A copy, not a view: the next step gives the device's memory to its own results. Empty arrays hold nothing to save.
    values = {str(number): whole_value(variable.value) for number, variable in enumerate(variables)}
    return {number: value for number, value in values.items() if value.size}
