"""A server's whole state on its way, a piece at a time: from a cut to the coordinator, and back into a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, final

import numpy as np

from lockstep.errors import CorruptDataError
from lockstep.parameter_server.links import Message
from lockstep.parameter_server.protocol import from_fields, to_fields
from lockstep.strategies.table_rows import Rows

CHUNK_BYTES: Final = 4 << 20
"""A server copies so much within a few milliseconds; it fits into the memory that is shared with one on this host."""
_IDS: Final = "ids"
_VALUES: Final = "values"
_STATE: Final = "state."


@final
class Stage(StrEnum):
    """What a chunk is; the stages come in this order."""

    WAITING = "waiting"
    """Nothing yet: closures of before the cut still run."""
    STANDING = "standing"
    """What the server has applied."""
    DENSE = "dense"
    """Pieces of the dense state's arrays."""
    ROWS = "rows"
    """Rows of a table."""
    END = "end"
    """That was all."""


@final
@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a server had applied at a cut.

    Attributes:
        closure: the cut's: all pushes of closures below it are in, and none of others but for `applied`.
        num_applied: how many pushes.
        applied: pushes of later closures that are in: (closure, number). There are some only where a synchronous step
            took pushes of both sides of the cut.
        step: how many synchronous steps.
    """

    closure: int = 0
    num_applied: int = 0
    applied: tuple[tuple[int, int], ...] = ()
    step: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one of the dense state's arrays.

    Attributes:
        name: the array's.
        shape: the whole array's.
        start: the part's first value, of the array laid out in one dim.
    """

    name: str
    shape: tuple[int, ...]
    start: int


@final
@dataclass(frozen=True, kw_only=True)
class ChunkHeader:
    """What a chunk says of itself.

    Attributes:
        stage: what it is.
        standing: what the server had applied, in that stage.
        pieces: what its arrays are parts of, where it is of dense state.
        table: whose rows they are, where it is of rows.
        num_pushes: how many pushes the table had.
    """

    stage: Stage
    standing: Standing | None = None
    pieces: tuple[Piece, ...] = ()
    table: str = ""
    num_pushes: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a server's state.

    Attributes:
        header: what it is.
        arrays: by name.
    """

    header: ChunkHeader
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])

    @classmethod
    def of_rows(cls, table: str, rows: Rows) -> Chunk:
        """Returns rows of a table as a chunk."""
        state = {f"{_STATE}{kind}": array for kind, array in rows.state.items()}
        header = ChunkHeader(stage=Stage.ROWS, table=table, num_pushes=rows.num_pushes)
        return cls(header=header, arrays={_IDS: rows.ids, _VALUES: rows.values, **state})

    @classmethod
    def from_message(cls, message: Message) -> Chunk:
        """Reads a chunk; its arrays are the message's.

        Raises:
            CorruptDataError: it is none.
        """
        return cls(header=from_fields(ChunkHeader, message.fields), arrays=message.arrays)

    def to_message(self, kind: str) -> Message:
        """Returns the chunk as a message of some kind."""
        return Message(kind=kind, fields=to_fields(self.header), arrays=self.arrays)

    def rows(self) -> Rows:
        """Returns what a chunk of rows has.

        Raises:
            CorruptDataError: it has none.
        """
        if not {_IDS, _VALUES} <= self.arrays.keys():
            raise CorruptDataError("rows of a table without ids or values", received=sorted(self.arrays))
        return Rows(
            ids=self.arrays[_IDS],
            values=self.arrays[_VALUES],
            state={name[len(_STATE) :]: array for name, array in self.arrays.items() if name.startswith(_STATE)},
            num_pushes=self.header.num_pushes,
        )


def cut_into_chunks(arrays: Callable[[], Mapping[str, np.ndarray[Any, Any]]], *, max_bytes: int) -> Iterator[Chunk]:
    """Yields arrays a piece at a time, copied.

    Args:
        arrays: gives them by name; asked anew for each chunk, since they may have moved since the one before.
        max_bytes: how large a chunk may be, about.
    """
    names = list(arrays())
    index, start = 0, 0
    while index < len(names):
        current = arrays()
        headers: list[Piece] = []
        pieces: dict[str, np.ndarray[Any, Any]] = {}
        room = max_bytes
        while index < len(names) and room > 0:
            array = current[names[index]]
            part = array.reshape(-1)[start : start + max(1, room // array.itemsize)].copy()
            pieces[str(len(headers))] = part
            headers.append(Piece(name=names[index], shape=tuple(array.shape), start=start))
            room -= part.nbytes
            start += part.size
            if start >= array.size:
                index, start = index + 1, 0
        yield Chunk(header=ChunkHeader(stage=Stage.DENSE, pieces=tuple(headers)), arrays=pieces)


@final
class Assembly:
    """Arrays that are put together from chunks of dense state."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._num_missing: dict[str, int] = {}

    def add(self, chunk: Chunk) -> None:
        """Takes a chunk's pieces, copied.

        Raises:
            CorruptDataError: a piece is not of its array.
        """
        for number, piece in enumerate(chunk.header.pieces):
            part = chunk.arrays.get(str(number))
            if part is None or part.ndim != 1:
                raise CorruptDataError(f"a piece of {piece.name} without values")
            array = self._arrays.get(piece.name)
            if array is None:
                array = self._arrays[piece.name] = np.empty(piece.shape, part.dtype)
                self._num_missing[piece.name] = array.size
            end = piece.start + part.size
            if array.shape != piece.shape or array.dtype != part.dtype or not 0 <= piece.start <= end <= array.size:
                raise CorruptDataError(f"a piece of {piece.name} that is not of it", received=f"{piece.start} to {end}")
            array.reshape(-1)[piece.start : end] = part
            self._num_missing[piece.name] -= part.size

    def finish(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the arrays by their names.

        Raises:
            CorruptDataError: a part of one did not come.
        """
        for name, num_missing in self._num_missing.items():
            if num_missing:
                raise CorruptDataError(f"{num_missing} values of {name} did not come")
        return self._arrays
