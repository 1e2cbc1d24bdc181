"""A server's rows of one embedding table: made when they are first asked for, updated by gradients for them alone."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.server.row_optimizers import RowOptimizer
from lockstep.parameter_server.server.row_values import RowValues

DTYPE: Final = np.dtype(np.float32)


@final
@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """An embedding table over all servers.

    Row n is the server's whose index is n modulo the number of servers: rows that are often met lie on all of them.

    Attributes:
        name: its layer's path.
        num_rows: how many ids there are: 0 to this less one.
        num_columns: how many values a row has.
        values: its rows' first values.
        optimizer: how rows are updated.
    """

    name: str
    num_rows: int
    num_columns: int
    values: RowValues
    optimizer: RowOptimizer


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows with all that is known of them, as a checkpoint keeps them.

    Attributes:
        ids: int64[rows], rising.
        values: float32[rows, columns].
        state: the optimizer's, float32[rows, width] of each kind.
        num_pushes: how many pushes the table has had.
    """

    ids: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    state: dict[str, np.ndarray[Any, Any]]
    num_pushes: int


@final
class TableShard:
    """One server's rows of a table.

    Memory is the system's to give: a row that was never asked for takes none, but for the rest of its page.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        spec: the table.
        server: which server this is.
        num_servers: of how many.

    Raises:
        InvalidInputError: the address space has no room for such a table.
    """

    def __init__(self, spec: TableSpec, *, server: int, num_servers: int) -> None:
        self._spec = spec
        self._server = server
        self._num_servers = num_servers
        num_own = len(range(server, spec.num_rows, num_servers))
        try:
            self._values = _zeros(num_own, spec.num_columns)
            self._state = {
                kind: _zeros(num_own, width) for kind, width in spec.optimizer.state_widths(spec.num_columns).items()
            }
            self._is_met = np.zeros(num_own, np.bool_)
        except (MemoryError, OSError) as error:
            raise InvalidInputError(
                f"table {spec.name} has too many rows for one server",
                received=f"{num_own:,} rows of {spec.num_columns}",
                action="use more parameter servers",
            ) from error
        self.num_pushes = 0

    @property
    def num_met(self) -> int:
        """How many of its rows have been asked for."""
        return int(np.count_nonzero(self._is_met))

    def read(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns rows.

        Args:
            ids: int64[rows], rising, all of this server's.

        Returns:
            float32[rows, columns].

        Raises:
            InvalidInputError: an id is not in the table, not this server's, or there twice.
        """
        places = self._places(ids)
        self._meet(ids, places)
        return self._values[places]

    def apply(self, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> None:
        """Updates rows.

        Args:
            ids: int64[rows], rising, all of this server's.
            gradients: float32[rows, columns]: the sum over the batch's uses of a row.

        Raises:
            InvalidInputError: the ids are not what they should be, or the gradients of another shape or dtype.
        """
        places = self.check(ids, gradients)
        self._meet(ids, places)
        self.num_pushes += 1
        values, state = self._values[places], {kind: array[places] for kind, array in self._state.items()}
        self._spec.optimizer.update(values, state, gradients, step=self.num_pushes)
        self._values[places] = values
        for kind, array in state.items():
            self._state[kind][places] = array

    def check(self, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Checks what `apply` would be given; returns the rows' places here.

        Raises:
            InvalidInputError: as there.
        """
        expected = (len(ids), self._spec.num_columns)
        if gradients.shape != expected or gradients.dtype != DTYPE:
            raise InvalidInputError(
                f"gradients for rows of table {self._spec.name}",
                received=f"{gradients.dtype} {gradients.shape}",
                allowed=f"{DTYPE} {expected}",
            )
        return self._places(ids)

    def export(self) -> Rows:
        """Returns a copy of all rows that have been met."""
        places = np.flatnonzero(self._is_met)
        return Rows(
            ids=places.astype(np.int64) * self._num_servers + self._server,
            values=self._values[places],
            state={kind: array[places] for kind, array in self._state.items()},
            num_pushes=self.num_pushes,
        )

    def restore(self, rows: Rows) -> None:
        """Takes rows back; all others are as if they had never been met. Those of other servers are passed over.

        Raises:
            InvalidInputError: they are of another table.
        """
        mine = rows.ids[rows.ids % self._num_servers == self._server]
        chosen = np.isin(rows.ids, mine)
        if rows.values.shape[1:] != (self._spec.num_columns,) or rows.state.keys() != self._state.keys():
            raise InvalidInputError(
                f"rows of table {self._spec.name} in a checkpoint",
                received=f"{rows.values.shape[1:]} with {sorted(rows.state)}",
                allowed=f"({self._spec.num_columns},) with {sorted(self._state)}",
            )
        places = self._places(mine)
        self._is_met[:] = False
        self._is_met[places] = True
        self._values[places] = rows.values[chosen]
        for kind, array in rows.state.items():
            self._state[kind][places] = array[chosen]
        self.num_pushes = rows.num_pushes

    def _places(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if ids.ndim != 1 or ids.dtype != np.int64:
            raise InvalidInputError(
                f"ids of table {self._spec.name}", received=f"{ids.dtype} {ids.shape}", allowed="int64 in one dim"
            )
        if len(ids) and (ids[0] < 0 or ids[-1] >= self._spec.num_rows or (np.diff(ids) <= 0).any()):
            raise InvalidInputError(
                f"ids of table {self._spec.name}",
                received=f"{ids.min()} to {ids.max()}, {len(ids)} of them",
                allowed=f"0 to {self._spec.num_rows - 1}, rising, each once",
            )
        if (ids % self._num_servers != self._server).any():
            raise InvalidInputError(f"ids of table {self._spec.name} that are another server's")
        return ids // self._num_servers

    def _meet(self, ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> None:
        is_new = ~self._is_met[places]
        if is_new.any():
            new = places[is_new]
            self._values[new] = self._spec.values.of(ids[is_new], num_columns=self._spec.num_columns, dtype=DTYPE)
            for array in self._state.values():
                array[new] = 0.0  # where rows were taken back, something may lie there still
            self._is_met[new] = True


def _zeros(num_rows: int, num_columns: int) -> np.ndarray[Any, Any]:
    """Returns zeros that the system gives page by page when they are first written, and in small pages.

    In large ones, as NumPy asks for, a row that is met would take two MiB.
    """
    size_bytes = num_rows * num_columns * DTYPE.itemsize
    memory = mmap.mmap(-1, max(1, size_bytes))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, DTYPE, count=num_rows * num_columns).reshape(num_rows, num_columns)
