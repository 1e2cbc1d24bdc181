"""Stores rows of embedding tables beside a checkpoint, because parameter servers' tables may exceed any one memory.

The rows are written before the checkpoint, in parts, into a folder of their own. The checkpoint refers to the parts
with their sizes and checksums; a part counts only if a checkpoint refers to it. Other parts are removed.
"""

# Orbax's path type is only partly typed, so values from it are of unknown type in this file.
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
    """A file with rows of a table.

    Attributes:
        path: the path of the file within the folder of all tables.
        size_bytes: the size of the file in bytes.
        sha256: the SHA-256 digest of the file's content, in hexadecimal digits.
    """

    path: Annotated[str, Field(pattern=r"^[0-9a-f-]+/[0-9]+\.rows$")]
    size_bytes: _Count
    sha256: str


@final
@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """A checkpoint's description of a table.

    Attributes:
        name: the name of the table.
        group: the group of the table's variable in the model: "trainable" or "non_trainable".
        number: the variable's number in the group.
        num_rows: the number of rows, met or not.
        num_columns: the number of values per row.
        first_values: the initial values of rows that were never met.
        widths: the number of values per row of each kind of the optimizer's state.
        num_pushes: the number of pushes that the table has received.
        parts: the files with the table's rows.
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
        """Parses the result of `to_json`.

        Raises:
            CorruptDataError: the document is something else.
        """
        try:
            return _TABLE.validate_python(document)
        except ValidationError as error:
            raise CorruptDataError("a checkpoint's table", received=error.errors()[0]["msg"]) from None

    def to_json(self) -> dict[str, Any]:
        """Returns the description as a JSON object."""
        return _TABLE.dump_python(self, mode="json")


_TABLE: Final[TypeAdapter[Any]] = TypeAdapter(SavedTable)


@final
@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A table in a checkpoint, whose rows can be read.

    Attributes:
        saved: the checkpoint's description of the table.
        folder: the folder of all tables.
    """

    saved: SavedTable
    folder: epath.Path

    def rows(self) -> Iterator[Rows]:
        """Yields the rows that were met, in blocks.

        Raises:
            CorruptDataError: a part is missing or has changed.
        """
        for part in self.saved.parts:
            path = self.folder / part.path
            try:
                content = path.read_bytes()
            except OSError as error:
                raise CorruptDataError(f"{path}, rows of a checkpoint, cannot be read: {error}") from error
            if len(content) != part.size_bytes or hashlib.sha256(content).hexdigest() != part.sha256:
                raise CorruptDataError(
                    f"{path}, rows of a checkpoint, has changed since it was written",
                    received=f"{len(content)} bytes",
                    allowed=f"{part.size_bytes} bytes of checksum {part.sha256[:8]}",
                    action="delete that checkpoint's folder to go on without it",
                )
            yield from _blocks(content, self.saved)

    def whole(self, kinds: Iterable[str]) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        """Returns the whole table as one array, and some kinds of the optimizer's state of its rows.

        Args:
            kinds: the kinds of the optimizer's state to return.

        Returns:
            The values as float32[rows, columns], and each kind of state as float32[rows, width], 0 for rows that were
            never met.

        Raises:
            CorruptDataError: a part is missing or has changed.
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
    """Writes rows of tables in parts.

    Args:
        folder: the folder of all tables; it is created if it does not exist.
        name: the name of the folder for these parts in it: hexadecimal digits and "-", unique among the checkpoints.
        part_bytes: the approximate size of a part in bytes.
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
        """Adds rows of a table. The rows are copied.

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
        """Writes the remaining rows. Returns, for each table, its parts and the number of pushes that it has received.

        Raises:
            OSError: a part could not be written.
        """
        self._end_part()
        return {table: (tuple(parts), self._num_pushes[table]) for table, parts in self._parts.items()}

    def discard(self) -> None:
        """Removes all parts that were written.

        Raises:
            OSError: a part cannot be removed.
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
                os.fsync(file.fileno())  # must be on disk before a checkpoint refers to it
        part = SavedPart(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        self._parts[self._table].append(part)


def remove_unnamed(folder: epath.Path, *, tables: Iterable[SavedTable]) -> None:
    """Removes parts to which no checkpoint refers.

    Args:
        folder: the folder of all tables.
        tables: the tables of all existing checkpoints.

    Raises:
        OSError: a part cannot be removed.
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
    """Returns the kind of state that an optimizer's variable holds for a model's variable, from Keras's names.

    Args:
        path: the path of the optimizer's variable, such as "adam/users_embeddings_momentum".
        variable: the path of the model's variable, such as "users/embeddings".

    Returns:
        The kind, such as "momentum"; "" if the optimizer's variable belongs to another variable.
    """
    name, prefix = path.rpartition("/")[2], f"{variable.replace('/', '_')}_"
    return name[len(prefix) :] if name.startswith(prefix) else ""


def matching_slots(
    paths: Mapping[int, str], *, variable: str, widths: Mapping[str, int], num_columns: int
) -> dict[int, str]:
    """Returns the optimizer's variables whose state the table's rows also have, with the same kind and shape.

    Args:
        paths: the paths of the optimizer's variables, by number.
        variable: the path of the table's variable.
        widths: the number of values per row of each kind of state.
        num_columns: the number of values per row.

    Returns:
        The kinds by the numbers of the optimizer's variables.
    """
    kinds = {number: slot_kind(path, variable=variable) for number, path in paths.items()}
    return {number: kind for number, kind in kinds.items() if widths.get(kind) == num_columns}
