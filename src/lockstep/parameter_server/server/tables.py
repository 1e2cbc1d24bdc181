"""A server's rows of an embedding table: created when they are first met, and updated by gradients for them alone."""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.protocol import TableSpec
from lockstep.strategies.table_rows import Rows

DTYPE: Final = np.dtype(np.float32)

_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``: Python has a name for it only from 3.13 on."""


@final
class RowMemory:
    """Memory for a number of rows and their state, by their indices on a server.

    The system provides memory on demand: a row that was never written takes none, except for the rest of its page.

    Args:
        spec: the table.
        num_rows: the number of rows.

    Attributes:
        values: float32[rows, columns], the rows.
        state: float32[rows, width] for each kind of state.
        is_met: bool[rows], whether each row has been met.
        optimizer: the optimizer of the rows.

    Raises:
        InvalidInputError: the address space is too small for this number of rows.
    """

    def __init__(self, spec: TableSpec, *, num_rows: int) -> None:
        self._spec = spec
        self.optimizer = spec.optimizer
        widths = spec.optimizer.state_widths(spec.num_columns)
        try:
            self.values = lazy_zeros((num_rows, spec.num_columns), DTYPE)
            self.state = {kind: lazy_zeros((num_rows, width), DTYPE) for kind, width in widths.items()}
            self.is_met = lazy_zeros((num_rows,), np.dtype(np.bool_))
        except (MemoryError, OSError) as error:
            raise InvalidInputError(
                f"table {spec.name} has too many rows for one server",
                received=f"{num_rows:,} rows of {spec.num_columns}",
                action="use more parameter servers",
            ) from error

    def update(self, indices: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], *, step: int) -> None:
        """Updates rows that have been met, by the table's optimizer."""
        values, state = self.read(indices), {kind: _taken(array, indices) for kind, array in self.state.items()}
        self.optimizer.update(values, state, gradients, step=step)
        self.put(indices, values, state)

    def read(self, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns a copy of rows that have been met."""
        return _taken(self.values, indices)

    def put(
        self, indices: np.ndarray[Any, Any], values: np.ndarray[Any, Any], state: dict[str, np.ndarray[Any, Any]]
    ) -> None:
        """Sets rows and their state."""
        _items(self.values)[indices] = _items(values)
        for kind, array in state.items():
            _items(self.state[kind])[indices] = _items(array)


@final
class TableShard:
    """One server's rows of a table.

    Not thread-safe: the owner serializes calls.

    Args:
        spec: the table.
        server: the index of this server.
        num_servers: the number of servers.

    Attributes:
        spec: the table.
        memory: the rows by their indices. Row n of the table has the index n // num_servers.
        num_pushes: the number of pushes that the table has received.

    Raises:
        InvalidInputError: the address space is too small for such a table.
    """

    def __init__(self, spec: TableSpec, *, server: int, num_servers: int) -> None:
        self.spec = spec
        self._server = server
        self._num_servers = num_servers
        self.num_rows = len(range(server, spec.num_rows, num_servers))
        self.memory = RowMemory(spec, num_rows=self.num_rows)
        self.num_pushes = 0

    @property
    def num_met(self) -> int:
        """The number of rows that have been met."""
        return int(np.count_nonzero(self.memory.is_met))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of its rows from the next push on."""
        self.memory.optimizer = replace(self.memory.optimizer, learning_rate=learning_rate)

    def read(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns rows. Those that were not met before are created.

        Args:
            ids: int64[rows], ascending, all of this server.

        Returns:
            float32[rows, columns].

        Raises:
            InvalidInputError: an id is not in the table, belongs to another server, or appears twice.
        """
        indices = self.indices(ids)
        self.create_rows(ids, indices)
        return self.memory.read(indices)

    def apply(self, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> None:
        """Updates rows.

        Args:
            ids: int64[rows], ascending, all of this server.
            gradients: float32[rows, columns], the sum over the uses of a row in the batch.

        Raises:
            InvalidInputError: the ids are not as described, or the gradients have another shape or dtype.
        """
        indices = self.check(ids, gradients)
        self.create_rows(ids, indices)
        self.num_pushes += 1
        self.memory.update(indices, gradients, step=self.num_pushes)

    def check(self, ids: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Checks the arguments of `apply`; returns the indices of the rows on this server.

        Raises:
            InvalidInputError: as for `apply`.
        """
        expected = (len(ids), self.spec.num_columns)
        if gradients.shape != expected or gradients.dtype != DTYPE:
            raise InvalidInputError(
                f"gradients for rows of table {self.spec.name}",
                received=f"{gradients.dtype} {gradients.shape}",
                allowed=f"{DTYPE} {expected}",
            )
        return self.indices(ids)

    def clear(self) -> None:
        """Forgets all rows and releases their memory, as if none had been met."""
        optimizer = self.memory.optimizer  # its learning rate may have been set
        del self.memory  # before the same amount is requested again
        self.memory = RowMemory(self.spec, num_rows=self.num_rows)
        self.memory.optimizer = optimizer
        self.num_pushes = 0

    def restore(self, rows: Rows) -> None:
        """Restores rows, in addition to those that are there. Rows of other servers are skipped.

        Raises:
            InvalidInputError: the rows are of another table.
        """
        given = {kind: array.shape[1:] for kind, array in {"values": rows.values, **rows.state}.items()}
        own = {kind: array.shape[1:] for kind, array in {"values": self.memory.values, **self.memory.state}.items()}
        if given != own:
            raise InvalidInputError(f"rows of table {self.spec.name} in a checkpoint", received=given, allowed=str(own))
        chosen = rows.ids % self._num_servers == self._server
        indices = self.indices(rows.ids[chosen])
        self.memory.put(indices, rows.values[chosen], {kind: array[chosen] for kind, array in rows.state.items()})
        self.memory.is_met[indices] = True
        self.num_pushes = rows.num_pushes

    def ids(self, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the ids of rows."""
        return indices.astype(np.int64) * self._num_servers + self._server

    def indices(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the indices of rows on this server.

        Raises:
            InvalidInputError: an id is not in the table, belongs to another server, or appears twice.
        """
        if ids.ndim != 1 or ids.dtype != np.int64:
            raise InvalidInputError(
                f"ids of table {self.spec.name}", received=f"{ids.dtype} {ids.shape}", allowed="int64 in one dim"
            )
        if len(ids) and (ids[0] < 0 or ids[-1] >= self.spec.num_rows or (ids[1:] <= ids[:-1]).any()):
            raise InvalidInputError(
                f"ids of table {self.spec.name}",
                received=f"{ids.min()} to {ids.max()}, {len(ids)} of them",
                allowed=f"0 to {self.spec.num_rows - 1}, rising, each once",
            )
        if self._num_servers == 1:  # a division would cost as much as everything else here
            return ids
        if (ids % self._num_servers != self._server).any():
            raise InvalidInputError(f"ids of table {self.spec.name} that are another server's")
        return ids // self._num_servers

    def create_rows(self, ids: np.ndarray[Any, Any], indices: np.ndarray[Any, Any]) -> None:
        """Sets rows that were not met before to their first values."""
        memory = self.memory
        is_new = ~memory.is_met[indices]
        if is_new.any():
            new = indices[is_new]
            memory.values[new] = self.spec.values.of(ids[is_new], num_columns=self.spec.num_columns, dtype=DTYPE)
            memory.is_met[new] = True


def _items(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns each row as one item: NumPy moves such items several times as fast as rows of numbers."""
    row = np.dtype((np.void, array.shape[1] * array.itemsize))
    return np.ascontiguousarray(array).view(row).reshape(-1)


def _taken(array: np.ndarray[Any, Any], indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    taken = np.empty((len(indices), array.shape[1]), array.dtype)
    np.take(_items(array), indices, out=_items(taken), mode="clip")  # checked already; "raise" would copy once more
    return taken


def lazy_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns zeros whose memory the system provides in small pages, when they are first written.

    They may be larger than the machine's memory. In large pages, as NumPy requests them, a row that is met would take
    two MiB.
    """
    num_items = math.prod(shape)
    # Private and without reservation: of shared or reserved memory, Linux refuses more than it has at once.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    memory = mmap.mmap(-1, max(1, num_items * dtype.itemsize), flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, count=num_items).reshape(shape)
