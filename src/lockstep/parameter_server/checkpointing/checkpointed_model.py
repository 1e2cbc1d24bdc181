"""A model's variables between a checkpoint, where they have the model's numbers, and the servers that keep them."""

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
"""The group of variables that are not the model's: metrics and counters of a loop of the user's own."""


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointedModel:
    """Where in a checkpoint what servers keep is.

    Attributes:
        setup: what they keep.
        values: for each variable of the placement its group in a checkpoint, and its number there.
        group: whose optimizer is the model's; None where there is none.
        slots: what each of the optimizer's variables is.
        num_accumulated: how many pushes the optimizer counts as one step.
        tables: for each table the group and number of its variable.
        others: values of variables that are not the model's, by their paths, for checkpoints that have none.
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
        """Looks at a model.

        Args:
            model: built, with its optimizer.
            setup: what the servers keep of it.
            others: variables that they keep besides. A checkpoint that has none of one leaves it the value that it has.

        Raises:
            InvalidInputError: they keep something that is none of these.
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
        """Returns a state with what the servers have in place of what this process has, their step among it.

        Args:
            state: what this process has.
            whole: the dense state of all servers.
            num_table_pushes: the most that a table has had: the step of an optimizer that trains tables alone.
            last_step: of the checkpoint before: where nothing counts steps, this one is the next.
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
        """Returns what of a state the servers keep, but for tables.

        Raises:
            InvalidInputError: the state has not all of it.
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
        """Returns what a state has of a variable that is not the model's; the variable's own value if it has none."""
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
        """Returns what a checkpoint says of the tables.

        Args:
            parts: for each its parts, and how many pushes it has had.
            folder: where they are.
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
        """Yields all rows of a table that another strategy had as one array, a part at a time; none where it had none.

        The optimizer's state of rows is taken over where it has the same shape; else it begins anew.

        Args:
            state: of the checkpoint.
            table: the table.
            max_bytes: about how large a part may be.
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
                "which begins anew: %s",
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
        """Which of the optimizer's variables counts pushes."""
        return next((number for number, slot in enumerate(self.slots) if slot.variable is None), None)

    def _num_pushes(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> int | None:
        """Returns what an optimizer's first variable counts."""
        count = self._count
        return None if count is None or str(count) not in arrays else int(arrays[str(count)])
