"""The state that decides the next step of a training run: variables, random state, position in the data."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self, final

import keras
import numpy as np

from lockstep.checkpoints.arrays import (
    Array,
    StoredArray,
    assign_all,
    copy_to_host,
    is_finite,
    is_scattered,
    read_arrays,
)
from lockstep.checkpoints.run_state import CALLBACKS, RunState
from lockstep.checkpoints.tables import StoredTable, matching_slots
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.strategies import fitting
from lockstep.upstream.keras_trainer import compiled_loss_of, compiled_metrics_of
from lockstep.upstream.keras_variables import global_seed_generator

logger = logging.getLogger(__name__)

METRICS: Final = "metrics"
OPTIMIZER: Final = "optimizer"
RANDOM: Final = "random"
_KERAS_SEED: Final = "keras_seed"
_MODEL_GROUPS: Final = ("trainable", "non_trainable", OPTIMIZER, METRICS)


@final
@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training run has come.

    Attributes:
        epoch: the number of finished epochs.
        batch: the number of finished batches of the current epoch; 0 between two epochs.
        step: the number of batches since training began, over all epochs.
        order: the values that decide which records each batch has, by name, as JSON; None if the data does not have
            them.
    """

    epoch: int
    batch: int
    step: int
    order: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Reads a position from a JSON object.

        Raises:
            CorruptDataError: the object is not a position.
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
    """All the state that decides the next step: copied from a model, or still in its checkpoint.

    Attributes:
        position: how far the run has come.
        arrays: the variables' arrays by group ("trainable", "non_trainable", "optimizer", "metrics", "random",
            "callbacks"), then by the variable's number in the model. They are in host memory, where each process has
            its own shards of divided arrays, or still in the checkpoint.
        paths: the variables' paths by group, in the same order, for error messages about a different model.
        generators: the state of Python's and NumPy's random generators, as JSON.
        tables: embedding tables of parameter servers, whose variables have no rows in the model.
        cluster: the state of the parameter servers' coordinator, as JSON; None under other strategies.
        initial: the numbers of the optimizer's variables whose values are not known, and that begin as in a new model.
        run: what a run of ``fit`` needs besides its model, as `RunState.to_json` gives it; None if it was not saved.
    """

    position: Position
    arrays: Mapping[str, Mapping[str, Array]]
    paths: Mapping[str, list[str]]
    generators: Mapping[str, Any]
    tables: tuple[StoredTable, ...] = ()
    cluster: Mapping[str, Any] | None = None
    initial: frozenset[int] = field(default_factory=frozenset[int])
    run: Mapping[str, Any] | None = None

    @classmethod
    def capture(cls, model: Any, *, position: Position, run: RunState | None = None) -> Self:
        """Copies a model's state to the host, without waiting for other processes.

        Of a variable that is divided over devices, each process copies its own shards.

        Args:
            model: a built model whose optimizer is built too.
            position: how far the run has come.
            run: what the run needs besides its model, if it is to be saved.

        Raises:
            InvalidInputError: the state of a callback has something that cannot be saved.
        """
        # During `fit`, the current values are in the state that Keras passes from step to step, not in the variables.
        model.jax_state_sync()
        groups = _variables(model)
        arrays: dict[str, dict[str, Array]] = {name: copies_of(variables) for name, variables in groups.items()}
        arrays[RANDOM] = {_KERAS_SEED: np.array(global_seed_generator().state.value)}
        document, arrays_of_callbacks = (None, {}) if run is None else run.to_json()
        arrays[CALLBACKS] = dict(arrays_of_callbacks)
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
            run=document,
        )

    def apply(self, model: Any) -> None:
        """Restores this state to a model and to the process's random generators, under any strategy.

        If the state is still in its checkpoint, this reads it: of each variable, the shards of this process's devices.
        In a job of several processes, every process must call this.

        Metrics are not restored, because Keras resets them when an epoch begins; call `apply_metrics` after that. An
        optimizer that is not built yet, as before the first step, is built. A model whose metrics are not built is
        accepted.

        Raises:
            InvalidInputError: the state is of another model, or the current strategy is not the model's.
            CorruptDataError: the checkpoint cannot be read. A part of the model may have been restored.
        """
        optimizer = getattr(model, "optimizer", None)  # set when a model is compiled
        num_found = len(_variables(model)[OPTIMIZER])
        if optimizer is not None and not optimizer.built and len(self.paths[OPTIMIZER]) > num_found:
            with fitting.scope_of(model), keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(model.trainable_variables)
        groups = _variables(model)
        state = self
        if any(_has_rows(groups, table) for table in self.tables):
            state = self.with_whole_tables()
        for name, variables in groups.items():
            if name != METRICS or _has_metrics(model):
                state._check(name, variables)
        pairs = [pair for name in _MODEL_GROUPS if name != METRICS for pair in state._pairs(name, groups[name])]
        seed = self.arrays[RANDOM].get(_KERAS_SEED)
        if seed is not None:
            pairs.append((global_seed_generator().state, seed))
        assign_all(pairs)
        version, words, gauss = self.generators["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, place, has_gauss, cached = self.generators["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), place, has_gauss, cached))

    def apply_metrics(self, model: Any) -> None:
        """Restores a model's metrics to their values within the interrupted epoch.

        Raises:
            InvalidInputError: the state is of another model.
            CorruptDataError: the checkpoint cannot be read.
        """
        variables = _variables(model)[METRICS]
        self._check(METRICS, variables)
        assign_all(self._pairs(METRICS, variables))

    def run_state(self) -> RunState:
        """Returns what the run needs besides its model, after reading it; an empty state if it was not saved.

        Raises:
            CorruptDataError: the checkpoint cannot be read.
        """
        if self.run is None:
            return RunState()
        found = self.arrays.get(CALLBACKS, {})
        stored = {key: value for key, value in found.items() if isinstance(value, StoredArray)}
        read = dict(zip(stored, read_arrays(list(stored.values())), strict=True))
        return RunState.from_json(self.run, {key: np.asarray(read.get(key, value)) for key, value in found.items()})

    def non_finite_variables(self) -> frozenset[str]:
        """Returns the paths of variables that hold NaN or infinite values. Metrics, which are reset, are not checked.

        Of a variable that is divided over processes, only this process's shards are checked.
        """
        return frozenset(
            self.paths[name][int(number)]
            for name in _MODEL_GROUPS
            if name != METRICS
            for number, value in self.arrays.get(name, {}).items()
            if not isinstance(value, StoredArray) and not is_finite(value)
        )

    @property
    def is_scattered(self) -> bool:
        """Whether an array of the state is divided over several processes."""
        return any(is_scattered(value) for group in self.arrays.values() for value in group.values())

    def read(self) -> Self:
        """Returns the state with all its arrays in this process's memory, after reading those still in the checkpoint.

        Raises:
            CorruptDataError: the checkpoint cannot be read.
        """
        flat = [(name, key, value) for name, group in self.arrays.items() for key, value in group.items()]
        stored = [value for _, _, value in flat if isinstance(value, StoredArray)]
        found = iter(read_arrays(stored))
        arrays: dict[str, dict[str, Array]] = {}
        for name, key, value in flat:
            arrays.setdefault(name, {})[key] = next(found) if isinstance(value, StoredArray) else value
        return replace(self, arrays=arrays)

    def whole_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Returns the arrays of a group as NumPy arrays; an empty dictionary if there is no such group.

        Args:
            name: the name of the group. Its arrays must not be divided over processes.
        """
        return {key: np.asarray(value) for key, value in self.arrays.get(name, {}).items()}

    def with_whole_tables(self) -> Self:
        """Returns the state with each table as one array of the model, as strategies without parameter servers need it.

        The optimizer's state of a table is included if the servers keep it in the same shape.

        Raises:
            CorruptDataError: rows cannot be read.
        """
        arrays = {name: dict(group) for name, group in self.arrays.items()}
        unknown = {n: path for n, path in enumerate(self.paths[OPTIMIZER]) if str(n) not in arrays.get(OPTIMIZER, {})}
        for table in self.tables:
            saved = table.saved
            variable = self.paths[saved.group][saved.number]
            kinds = matching_slots(unknown, variable=variable, widths=saved.widths, num_columns=saved.num_columns)
            values, state = table.whole(kinds.values())
            arrays.setdefault(saved.group, {})[str(saved.number)] = values
            for number, kind in kinds.items():
                arrays.setdefault(OPTIMIZER, {})[str(number)] = state[kind]
                del unknown[number]
        if unknown and self.tables:
            logger.warning(
                "parameter servers keep a different optimizer state for table rows; it is reset for: %s",
                ", ".join(unknown.values()),
            )
        return replace(self, arrays=arrays, tables=(), initial=frozenset(unknown) if self.tables else self.initial)

    def _pairs(self, name: str, variables: list[Any]) -> list[tuple[Any, Array]]:
        saved = self.arrays.get(name, {})
        return [
            (variable, saved[str(number)])
            for number, variable in enumerate(variables)
            if str(number) in saved and 0 not in variable.shape  # a variable without rows is on servers
        ]

    def _check(self, name: str, variables: list[Any]) -> None:
        saved = self.arrays.get(name, {})
        shapes = [tuple(saved[str(n)].shape) if str(n) in saved else None for n in range(len(self.paths[name]))]
        wanted = [tuple(variable.shape) if 0 not in variable.shape else None for variable in variables]
        for number, variable in enumerate(variables[: len(shapes)]):
            is_initial = name == OPTIMIZER and number in self.initial
            shape = shapes[number]
            is_of_table = 0 in variable.shape and shape is not None and shape[1:] == tuple(variable.shape)[1:]
            if is_initial or is_of_table:
                shapes[number] = wanted[number]
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


def optimizers_of(model: Any) -> list[Any]:
    """Returns a model's optimizers: the one that it was compiled with, then those in its attributes (as in a GAN)."""
    compiled = getattr(model, "optimizer", None)
    found = [] if compiled is None else [compiled]
    for value in keras.tree.flatten([part for name, part in vars(model).items() if not name.startswith("_")]):
        if isinstance(value, keras.Optimizer) and not any(value is one for one in found):
            found.append(value)
    return found


def _variables(model: Any) -> dict[str, list[Any]]:
    return {
        "trainable": list(model.trainable_variables),
        "non_trainable": list(model.non_trainable_variables),
        OPTIMIZER: [variable for optimizer in optimizers_of(model) for variable in optimizer.variables],
        METRICS: list(model.metrics_variables),
    }


def _has_metrics(model: Any) -> bool:
    parts = (compiled_metrics_of(model), compiled_loss_of(model))
    return all(part is None or part.built for part in parts)


def _has_rows(groups: Mapping[str, list[Any]], table: StoredTable) -> bool:
    variables = groups.get(table.saved.group, [])
    return table.saved.number < len(variables) and 0 not in variables[table.saved.number].shape


def copies_of(variables: list[Any]) -> dict[str, Array]:
    """Copies the values of Keras variables to the host. Returns the values that are not empty, by variable number."""
    values = {str(number): copy_to_host(variable.value) for number, variable in enumerate(variables)}
    return {number: value for number, value in values.items() if value.size}
