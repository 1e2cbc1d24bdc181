"""Maps a model's variables between a checkpoint, which has the model's numbering, and the servers that keep them."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, final

import jax.numpy as jnp
import numpy as np
from etils import epath

from lockstep.checkpoints import TrainingState
from lockstep.checkpoints.tables import SavedPart, SavedTable, StoredTable, matching_slots
from lockstep.errors import InvalidInputError
from lockstep.parameter_server.protocol import Setup, TableSpec
from lockstep.parameter_server.server.slots import Slot
from lockstep.parameter_server.server.tables import DTYPE
from lockstep.parameter_server.whole_state import WholeState, placed_slots
from lockstep.strategies.table_rows import Rows
from lockstep.upstream.keras_variables import trainable_variables_of

LOGGER: Final = logging.getLogger(__name__)

OPTIMIZER: Final = "optimizer"
OTHER: Final = "other"
"""The group of variables that do not belong to the model: metrics and counters of the user's own loop."""


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointedModel:
    """The positions, in a checkpoint, of what servers keep.

    Attributes:
        setup: what the servers keep.
        values: for each variable of the placement, its group in a checkpoint and its number in the group.
        group: the index of the group with the model's optimizer; None if there is none.
        slots: the slot of each variable of the optimizer.
        num_accumulated: the number of pushes that the optimizer counts as one step.
        tables: for each table, the group and number of its variable.
        others: the values of variables that do not belong to the model, by path, for checkpoints without them.
    """

    setup: Setup
    values: tuple[tuple[str, int], ...]
    group: int | None
    slots: tuple[Slot, ...]
    num_accumulated: int
    tables: Mapping[str, tuple[str, int]]
    others: Mapping[str, np.ndarray[Any, Any]]

    @classmethod
    def of(cls, model: Any, *, setup: Setup, others: Sequence[Any] = ()) -> Self:
        """Finds the positions of a model's variables.

        Args:
            model: the model, built, with its optimizer.
            setup: what the servers keep of it.
            others: further variables that the servers keep. A variable that a checkpoint lacks keeps its value.

        Raises:
            InvalidInputError: the servers keep a variable that is neither the model's nor in `others`.
        """
        groups = {
            "trainable": model.trainable_variables,
            "non_trainable": model.non_trainable_variables,
            OTHER: list(others),
        }
        numbers = {v.path: (group, n) for group, variables in groups.items() for n, v in enumerate(variables)}
        values: list[tuple[str, int]] = []
        for spec in setup.placement.variables:
            if spec.path not in numbers:
                raise InvalidInputError(
                    "the parameter servers keep a variable that is not the model's, which no checkpoint would have",
                    received=spec.path,
                )
            values.append(numbers[spec.path])
        without_rows = [v.path for name in ("trainable", "non_trainable") for v in groups[name] if 0 in v.shape]
        tables: dict[str, tuple[str, int]] = {}
        for table in setup.tables:
            own = [path for path in without_rows if f"/{table.name}/" in f"/{path}/"]
            if len(own) != 1:
                raise InvalidInputError(
                    f"table {table.name} of the parameter servers has no variable in the model", received=own or None
                )
            tables[table.name] = numbers[own[0]]
        group = next((n for n, one in enumerate(setup.groups) if one.optimizer is not None), None)
        slots: list[Slot] = []
        if group is not None:
            optimizer = getattr(model, "optimizer", None)  # Keras makes it when a model is compiled
            if optimizer is None:
                raise InvalidInputError(
                    "the parameter servers run an optimizer that is not the model's, which no checkpoint would have",
                    action="give it to the model: model.compile(optimizer)",
                )
            slots = placed_slots(optimizer, trainable_variables_of(optimizer), placement=setup.placement)
        return cls(
            setup=setup,
            values=tuple(values),
            group=group,
            slots=tuple(slots),
            num_accumulated=(group is not None and model.optimizer.gradient_accumulation_steps) or 1,
            tables=tables,
            others={variable.path: np.array(variable.value) for variable in others},
        )

    def checkpoint(
        self,
        state: TrainingState,
        whole: WholeState,
        *,
        num_table_pushes: int | None = None,
        last_step: int | None = None,
    ) -> TrainingState:
        """Returns a state in which the servers' values and step replace those of this process.

        Args:
            state: the state of this process.
            whole: the dense state of all servers.
            num_table_pushes: the largest number of pushes to a table: the step of an optimizer that only trains tables.
            last_step: the step of the previous checkpoint. If nothing counts steps, the new step is the next one.
        """
        arrays = {name: state.whole_arrays(name) for name in state.arrays}
        for (group, number), value in zip(self.values, whole.values, strict=True):
            if value.size:
                arrays.setdefault(group, {})[str(number)] = value
        for number, slot in enumerate(self.slots):
            value = None if self.group is None else whole.slots[self.group].get(slot)
            if value is not None and value.size:
                arrays.setdefault(OPTIMIZER, {})[str(number)] = value
        count = self._count
        is_counted = self.group is None or count is None or self.slots[count] in whole.slots[self.group]
        if not is_counted and num_table_pushes is not None:
            own = arrays.setdefault(OPTIMIZER, {})
            own[str(count)] = np.asarray(num_table_pushes, own[str(count)].dtype if str(count) in own else np.int32)
        num_pushes = self._num_pushes(arrays.get(OPTIMIZER, {}))
        position = state.position
        if num_pushes is not None:
            position = replace(position, step=num_pushes // self.num_accumulated)
        elif last_step is not None:
            position = replace(position, step=max(position.step, last_step + 1))
        paths = {**state.paths, OTHER: list(self.others)} if self.others else state.paths
        return replace(state, arrays=arrays, paths=paths, position=position)

    def whole(self, state: TrainingState) -> WholeState:
        """Returns the part of a state that the servers keep, without tables.

        Raises:
            InvalidInputError: a part is missing in the state.
        """
        arrays = {name: state.whole_arrays(name) for name in state.arrays}
        optimizer = arrays.get(OPTIMIZER, {})
        slots: list[dict[Slot, np.ndarray[Any, Any]]] = [{} for _ in self.setup.groups]
        if self.group is not None:
            slots[self.group] = {
                slot: optimizer[str(number)]
                for number, slot in enumerate(self.slots)
                if slot.variable != -1 and str(number) in optimizer
            }
        values: list[np.ndarray[Any, Any]] = []
        for (group, number), spec in zip(self.values, self.setup.placement.variables, strict=True):
            value = self._other(state, spec.path) if group == OTHER else arrays.get(group, {}).get(str(number))
            if value is None and 0 not in spec.shape:
                raise InvalidInputError("a checkpoint of another model", received=f"without {spec.path}")
            values.append(np.zeros(spec.shape, jnp.dtype(spec.dtype)) if value is None else value)
        return WholeState(values=tuple(values), slots=tuple(slots))

    def _other(self, state: TrainingState, path: str) -> np.ndarray[Any, Any]:
        """Returns a state's value of a variable that is not the model's; the variable's own if it has none."""
        paths = state.paths.get(OTHER, ())
        own = self.others[path]
        found = state.whole_arrays(OTHER).get(str(paths.index(path)), own) if path in paths else own
        if found.shape != own.shape or found.dtype != own.dtype:
            raise InvalidInputError(
                f"a checkpoint has another variable {path}",
                received=f"{found.dtype} of shape {found.shape}",
                allowed=f"{own.dtype} of shape {own.shape}",
                action="name another directory, or delete this one to train from the beginning",
            )
        return found

    def saved_tables(
        self, parts: Mapping[str, tuple[tuple[SavedPart, ...], int]], *, folder: epath.Path
    ) -> tuple[StoredTable, ...]:
        """Returns the description of the tables for a checkpoint.

        Args:
            parts: for each table, its parts and its number of pushes.
            folder: the folder with the parts.
        """
        found: list[StoredTable] = []
        for table in self.setup.tables:
            group, number = self.tables[table.name]
            own, num_pushes = parts[table.name]
            saved = SavedTable(
                name=table.name,
                group=group,
                number=number,
                num_rows=table.num_rows,
                num_columns=table.num_columns,
                first_values=table.values,
                widths=table.optimizer.state_widths(table.num_columns),
                num_pushes=num_pushes,
                parts=own,
            )
            found.append(StoredTable(saved=saved, folder=folder))
        return tuple(found)

    def rows(self, state: TrainingState, table: TableSpec, *, max_bytes: int) -> Iterator[Rows]:
        """Yields all rows of a table that another strategy saved as one array, in parts; nothing if it saved none.

        The optimizer's state of the rows is restored if it has the same shape. Otherwise, it begins anew.

        Args:
            state: the state from the checkpoint.
            table: the table.
            max_bytes: the approximate maximum size of a part, in bytes.
        """
        group, number = self.tables[table.name]
        values = state.whole_arrays(group).get(str(number))
        if values is None:
            return
        if values.shape != (table.num_rows, table.num_columns):
            raise InvalidInputError(
                f"table {table.name} in a checkpoint",
                received=values.shape,
                allowed=str((table.num_rows, table.num_columns)),
            )
        widths = table.optimizer.state_widths(table.num_columns)
        kinds = matching_slots(
            dict(enumerate(state.paths[OPTIMIZER])),
            variable=state.paths[group][number],
            widths=widths,
            num_columns=table.num_columns,
        )
        arrays = state.whole_arrays(OPTIMIZER)
        known = {kind: arrays[str(n)] for n, kind in kinds.items() if str(n) in arrays}
        if known.keys() != widths.keys():
            LOGGER.warning(
                "the optimizer of the checkpoint keeps another state for table %s than the parameter servers do, "
                "which is reset: %s",
                table.name,
                ", ".join(sorted(widths.keys() - known.keys())),
            )
        num_pushes = self._num_pushes(arrays) or 0
        row_bytes = DTYPE.itemsize * (table.num_columns + sum(widths.values()))
        rows_at_once = max(1, max_bytes // row_bytes)
        for start in range(0, table.num_rows, rows_at_once):
            end = min(start + rows_at_once, table.num_rows)
            yield Rows(
                ids=np.arange(start, end, dtype=np.int64),
                values=values[start:end].astype(DTYPE),
                state={
                    kind: known[kind][start:end].astype(DTYPE)
                    if kind in known
                    else np.zeros((end - start, width), DTYPE)
                    for kind, width in widths.items()
                },
                num_pushes=num_pushes,
            )

    @property
    def _count(self) -> int | None:
        """The index, among the optimizer's variables, of the one that counts pushes."""
        return next((number for number, slot in enumerate(self.slots) if slot.variable is None), None)

    def _num_pushes(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> int | None:
        """Returns the number of pushes that an optimizer has counted."""
        count = self._count
        return None if count is None or str(count) not in arrays else int(arrays[str(count)])
