"""A server's rows of a table as they were at a cut, while pushes after the cut go on."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from lockstep.parameter_server.server.tables import DTYPE, RowMemory, TableShard, lazy_zeros
from lockstep.strategies.table_rows import Rows

WINDOW: Final = 1 << 22
"""The number of rows that are searched at a time for rows that were met."""


@final
class TableCut:
    """The rows of a cut.

    Until `begin` is called, the rows of the cut are those of the table. From then on, a row is kept aside before a push
    changes it, unless it has already been read.

    Args:
        table: the rows of the server, which continue to change.
    """

    def __init__(self, table: TableShard) -> None:
        self._table = table
        self._aside: RowMemory | None = None
        self._is_aside = np.zeros(0, np.bool_)
        self._num_pushes = 0
        self._next_place = 0

    @property
    def is_read(self) -> bool:
        """Whether all rows have been read."""
        return self._next_place >= self._table.num_rows

    def begin(self) -> None:
        """Begins to keep rows as they are now. Idempotent.

        Raises:
            InvalidInputError: the address space is too small for the rows that are kept aside.
        """
        if self._aside is None:
            self._aside = RowMemory(self._table.spec, num_rows=self._table.num_rows)
            self._aside.optimizer = self._table.memory.optimizer
            self._is_aside = lazy_zeros((self._table.num_rows,), np.dtype(np.bool_))
            self._num_pushes = self._table.num_pushes

    def keep(self, ids: np.ndarray[Any, Any]) -> None:
        """Keeps rows aside before a push changes them. Only called after `begin`.

        Args:
            ids: int64[rows], ascending, all of this server.
        """
        assert self._aside is not None, "the cut has begun"
        indices = self._table.indices(ids)
        is_new = (indices >= self._next_place) & ~self._is_aside[indices]
        indices, ids = indices[is_new], ids[is_new]
        memory = self._table.memory
        self._aside.is_met[indices] = memory.is_met[indices]
        self._table.create_rows(
            ids, indices
        )  # a row that was not met gets its first values: an earlier push may still arrive
        self._aside.put(indices, memory.values[indices], {kind: array[indices] for kind, array in memory.state.items()})
        self._is_aside[indices] = True

    def apply(self, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> None:
        """Applies a push that belongs to the cut to rows that are kept aside."""
        assert self._aside is not None, "the cut has begun"
        indices = self._table.indices(ids)
        self._num_pushes += 1
        self._aside.update(indices, gradients, step=self._num_pushes)
        self._aside.is_met[indices] = True

    def read(self, *, max_bytes: int) -> Rows:
        """Returns copies of the next rows; none if all have been read.

        Args:
            max_bytes: the approximate maximum size of the rows, in bytes.
        """
        memory = self._table.memory
        row_bytes = DTYPE.itemsize * (memory.values.shape[1] + sum(a.shape[1] for a in memory.state.values()))
        indices = self._next_met(max(1, max_bytes // (row_bytes + 8)))
        values, state = memory.values[indices], {kind: array[indices] for kind, array in memory.state.items()}
        if self._aside is not None:
            is_aside = self._is_aside[indices]
            from_aside = indices[is_aside]
            values[is_aside] = self._aside.values[from_aside]
            for kind, array in state.items():
                array[is_aside] = self._aside.state[kind][from_aside]
        num_pushes = self._table.num_pushes if self._aside is None else self._num_pushes
        return Rows(ids=self._table.ids(indices), values=values, state=state, num_pushes=num_pushes)

    def _next_met(self, most: int) -> np.ndarray[Any, Any]:
        found = np.zeros(0, np.int64)
        while not len(found) and not self.is_read:
            start, end = self._next_place, min(self._next_place + WINDOW, self._table.num_rows)
            is_met = self._table.memory.is_met[start:end]
            if self._aside is not None:
                is_met = np.where(self._is_aside[start:end], self._aside.is_met[start:end], is_met)
            found = np.flatnonzero(is_met)[:most] + start
            self._next_place = int(found[-1]) + 1 if len(found) == most else end
        return found
