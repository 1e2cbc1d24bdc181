"""A server's rows of a table as they were at a cut, while pushes that are not in it go on."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from lockstep.parameter_server.server.tables import DTYPE, RowMemory, TableShard, lazy_zeros
from lockstep.strategies.table_rows import Rows

WINDOW: Final = 1 << 22
"""Rows that are looked through for some that are met, at a time."""


@final
class TableCut:
    """Rows of a cut.

    Until it is `begun`, what the table holds is what the cut holds. From then on a row is kept aside before a push
    changes it; once it has been read, it is not any more.

    Args:
        table: the rows that go on.
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
        return self._next_place >= self._table.num_places

    def begin(self) -> None:
        """Keeps what there is. Idempotent.

        Raises:
            InvalidInputError: the address space has no room for the rows that are kept aside.
        """
        if self._aside is None:
            self._aside = RowMemory(self._table.spec, num_rows=self._table.num_places)
            self._aside.optimizer = self._table.memory.optimizer
            self._is_aside = lazy_zeros((self._table.num_places,), np.dtype(np.bool_))
            self._num_pushes = self._table.num_pushes

    def keep(self, ids: np.ndarray[Any, Any]) -> None:
        """Keeps rows aside before a push changes them; to be called once the cut has begun.

        Args:
            ids: int64[rows], rising, all of this server's.
        """
        assert self._aside is not None, "the cut has begun"
        indices = self._table.indices(ids)
        is_new = (indices >= self._next_place) & ~self._is_aside[indices]
        indices, ids = indices[is_new], ids[is_new]
        memory = self._table.memory
        self._aside.is_met[indices] = memory.is_met[indices]
        self._table.meet(ids, indices)  # a row that is not there has its first values: a push of before may still come
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
        """Returns the next rows, copied; none where there are no more.

        Args:
            max_bytes: how large they may be, about.
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
            start, end = self._next_place, min(self._next_place + WINDOW, self._table.num_places)
            is_met = self._table.memory.is_met[start:end]
            if self._aside is not None:
                is_met = np.where(self._is_aside[start:end], self._aside.is_met[start:end], is_met)
            found = np.flatnonzero(is_met)[:most] + start
            self._next_place = int(found[-1]) + 1 if len(found) == most else end
        return found
