"""Rows of embedding tables beside a checkpoint: tables of parameter servers may be larger than any one memory.

They are written before the checkpoint, in parts, into a folder of their own; the checkpoint names the parts, with their
sizes and checksums, and is what makes them count. Parts that no checkpoint names are removed.
"""

# Orbax's paths are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self, final

import numpy as np
from etils import epath
from pydantic import Field, TypeAdapter, ValidationError

from lockstep.errors import CorruptDataError
from lockstep.strategies.table_rows import Rows, RowValues

FOLDER: Final = "tables"
PART_BYTES: Final = 64 << 20
_DTYPE: Final = np.dtype(np.float32)
_Count = Annotated[int, Field(ge=0)]


@final
@dataclass(frozen=True, kw_only=True)
class SavedPart:
    """A file of rows.

    Attributes:
        path: where it is, within the folder of all tables.
        size_bytes: its length.
        sha256: of what is in it, in hexadecimal digits.
    """

    path: Annotated[str, Field(pattern=r"^[0-9a-f-]+/[0-9]+\.rows$")]
    size_bytes: _Count
    sha256: str


@final
@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """What a checkpoint says of a table.

    Attributes:
        name: the table's.
        group: the group of the model's variables that it is one of: "trainable" or "non_trainable".
        number: its variable's number there.
        num_rows: how many rows it has, met or not.
        num_columns: how many values a row has.
        first_values: what rows begin with that were never met.
        widths: how many values of each kind of the optimizer's state a row has.
        num_pushes: how many pushes it has had.
        parts: its rows.
    """

    name: str
    group: str
    number: _Count
    num_rows: _Count
    num_columns: _Count
    first_values: RowValues
    widths: dict[str, int]
    num_pushes: _Count
    parts: tuple[SavedPart, ...]

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Reads what `to_json` gives.

        Raises:
            CorruptDataError: it is something else.
        """
        try:
            return _TABLE.validate_python(document)
        except ValidationError as error:
            raise CorruptDataError("a checkpoint's table", received=error.errors()[0]["msg"]) from None

    def to_json(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return _TABLE.dump_python(self, mode="json")


_TABLE: Final[TypeAdapter[Any]] = TypeAdapter(SavedTable)


@final
@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A table whose rows can be read.

    Attributes:
        saved: what the checkpoint says of it.
        folder: that of all tables.
    """

    saved: SavedTable
    folder: epath.Path

    def rows(self) -> Iterator[Rows]:
        """Yields the rows that were met, in parts.

        Raises:
            CorruptDataError: a part is not there, or not what it was.
        """
        for part in self.saved.parts:
            path = self.folder / part.path
            try:
                content = path.read_bytes()
            except OSError as error:
                raise CorruptDataError(f"{path}, rows of a checkpoint, cannot be read: {error}") from error
            if len(content) != part.size_bytes or hashlib.sha256(content).hexdigest() != part.sha256:
                raise CorruptDataError(
                    f"{path}, rows of a checkpoint, is not what was written",
                    received=f"{len(content)} bytes",
                    allowed=f"{part.size_bytes} bytes of checksum {part.sha256[:8]}",
                    action="delete that checkpoint's folder to go on from the checkpoint before it",
                )
            yield from _blocks(content, self.saved)

    def whole(self, kinds: Iterable[str]) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        """Returns the table as one array, and some kinds of the state of its rows.

        Args:
            kinds: of the optimizer's state.

        Returns:
            float32[rows, columns], and float32[rows, width] of each kind, 0 for rows that were never met.

        Raises:
            CorruptDataError: as for `rows`.
        """
        saved = self.saved
        ids = np.arange(saved.num_rows, dtype=np.int64)
        values = saved.first_values.of(ids, num_columns=saved.num_columns, dtype=_DTYPE)
        state = {kind: np.zeros((saved.num_rows, saved.widths[kind]), _DTYPE) for kind in kinds}
        for rows in self.rows():
            values[rows.ids] = rows.values
            for kind, array in state.items():
                array[rows.ids] = rows.state[kind]
        return values, state


@final
class RowsWriter:
    """Writes rows of tables, in parts.

    Args:
        folder: that of all tables; it is made where it is not there.
        name: that of the folder in it for these parts: hexadecimal digits and "-", which no other checkpoint has.
        part_bytes: about how large a part becomes.
    """

    def __init__(self, folder: epath.Path, *, name: str, part_bytes: int = PART_BYTES) -> None:
        self._folder = folder
        self._name = name
        self._part_bytes = part_bytes
        self._num_parts = 0
        self._buffer = io.BytesIO()
        self._parts: dict[str, list[SavedPart]] = {}
        self._num_pushes: dict[str, int] = {}
        self._table = ""

    def add(self, table: str, rows: Rows) -> None:
        """Takes rows of a table, copied.

        Raises:
            OSError: a part could not be written.
        """
        if table != self._table:
            self._end_part()
            self._table = table
        self._parts.setdefault(table, [])
        self._num_pushes[table] = max(rows.num_pushes, self._num_pushes.get(table, 0))
        if not len(rows.ids):
            return
        for array in (rows.ids, rows.values, *(rows.state[kind] for kind in sorted(rows.state))):
            np.lib.format.write_array(self._buffer, np.ascontiguousarray(array), allow_pickle=False)
        if self._buffer.tell() >= self._part_bytes:
            self._end_part()

    def finish(self) -> dict[str, tuple[tuple[SavedPart, ...], int]]:
        """Writes what is left; returns for each table its parts, and how many pushes it has had.

        Raises:
            OSError: a part could not be written.
        """
        self._end_part()
        return {table: (tuple(parts), self._num_pushes[table]) for table, parts in self._parts.items()}

    def discard(self) -> None:
        """Removes what was written.

        Raises:
            OSError: it cannot be removed.
        """
        if (self._folder / self._name).exists():
            (self._folder / self._name).rmtree()

    def _end_part(self) -> None:
        content = self._buffer.getvalue()
        if not content:
            return
        self._buffer = io.BytesIO()
        path = f"{self._name}/{self._num_parts}.rows"
        self._num_parts += 1
        (self._folder / self._name).mkdir(parents=True, exist_ok=True)
        with (self._folder / path).open("wb") as file:
            file.write(content)
            file.flush()
            if "://" not in str(self._folder):
                os.fsync(file.fileno())  # the checkpoint that names it is on the disk no earlier than this
        part = SavedPart(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        self._parts[self._table].append(part)


def remove_unnamed(folder: epath.Path, *, tables: Iterable[SavedTable]) -> None:
    """Removes parts that no checkpoint names.

    Args:
        folder: that of all tables.
        tables: those of all checkpoints that there are.

    Raises:
        OSError: something cannot be removed.
    """
    named = {part.path.partition("/")[0] for table in tables for part in table.parts}
    for path in folder.iterdir():
        if path.name not in named:
            path.rmtree()


def _blocks(content: bytes, table: SavedTable) -> Iterator[Rows]:
    file = io.BytesIO(content)
    try:
        while file.tell() < len(content):
            ids, values, *state = [
                np.lib.format.read_array(file, allow_pickle=False) for _ in range(2 + len(table.widths))
            ]
            yield Rows(
                ids=ids,
                values=values,
                state=dict(zip(sorted(table.widths), state, strict=True)),
                num_pushes=table.num_pushes,
            )
    except ValueError as error:
        raise CorruptDataError(f"rows of table {table.name} in a checkpoint cannot be read: {error}") from error


def slot_kind(path: str, *, variable: str) -> str:
    """Returns which kind of state an optimizer's variable is for some variable, as Keras names them.

    Args:
        path: the optimizer's variable's: "adam/users_embeddings_momentum".
        variable: the other one's path: "users/embeddings".

    Returns:
        "momentum"; empty where it belongs to another variable.
    """
    name, prefix = path.rpartition("/")[2], f"{variable.replace('/', '_')}_"
    return name[len(prefix) :] if name.startswith(prefix) else ""


def matching_slots(
    paths: Mapping[int, str], *, variable: str, widths: Mapping[str, int], num_columns: int
) -> dict[int, str]:
    """Returns which of an optimizer's variables are what rows have as their own state: of one kind and shape.

    Args:
        paths: of the optimizer's variables, by their numbers.
        variable: the path of the table's variable.
        widths: how many values of each kind a row has.
        num_columns: how many values a row has.

    Returns:
        Kinds by the variables' numbers.
    """
    kinds = {number: slot_kind(path, variable=variable) for number, path in paths.items()}
    return {number: kind for number, kind in kinds.items() if widths.get(kind) == num_columns}
