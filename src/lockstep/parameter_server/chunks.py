"""Moves a server's whole state in chunks: from a cut to the coordinator, and back into a server."""

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
"""The size of a chunk, in bytes. A server copies this much within a few milliseconds. A chunk fits into the memory that
is shared with a server on the same host.
"""
_IDS: Final = "ids"
_VALUES: Final = "values"
_STATE: Final = "state."


@final
class Stage(StrEnum):
    """The content of a chunk. Chunks arrive in the order of these stages."""

    WAITING = "waiting"
    """No content yet: closures from before the cut are still running."""
    APPLIED_STATE = "applied_state"
    """What the server has applied."""
    DENSE = "dense"
    """Pieces of the dense state's arrays."""
    ROWS = "rows"
    """Rows of a table."""
    END = "end"
    """No more chunks."""


@final
@dataclass(frozen=True, kw_only=True)
class AppliedState:
    """What a server had applied at a cut.

    Attributes:
        closure: the closure of the cut. All pushes of closures below it are included, and no others except `applied`.
        num_applied: the number of pushes that the server had applied.
        applied: the included pushes of later closures, as (closure, number). Only non-empty if a synchronous step
            combined pushes from both sides of the cut.
        step: the number of synchronous steps that the server had done.
    """

    closure: int = 0
    num_applied: int = 0
    applied: tuple[tuple[int, int], ...] = ()
    step: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one array of the dense state.

    Attributes:
        name: the name of the array.
        shape: the shape of the whole array.
        start: the index of the part's first value in the flattened array.
    """

    name: str
    shape: tuple[int, ...]
    start: int


@final
@dataclass(frozen=True, kw_only=True)
class ChunkHeader:
    """The header of a chunk.

    Attributes:
        stage: the kind of content.
        applied_state: what the server had applied; only in the stage `APPLIED_STATE`.
        pieces: the part that each array of the chunk is; only in the stage `DENSE`.
        table: the name of the table that the rows belong to; only in the stage `ROWS`.
        num_pushes: the number of pushes that the table has received.
    """

    stage: Stage
    applied_state: AppliedState | None = None
    pieces: tuple[Piece, ...] = ()
    table: str = ""
    num_pushes: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One chunk of a server's state.

    Attributes:
        header: a description of the content.
        arrays: the content, as arrays by name.
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
        """Reads a chunk from a message, and uses the message's arrays without copying them.

        Raises:
            CorruptDataError: the message is not a chunk.
        """
        return cls(header=from_fields(ChunkHeader, message.fields), arrays=message.arrays)

    def to_message(self, kind: str) -> Message:
        """Returns the chunk as a message of the given kind."""
        return Message(kind=kind, fields=to_fields(self.header), arrays=self.arrays)

    def rows(self) -> Rows:
        """Returns the rows in a chunk of the stage `ROWS`.

        Raises:
            CorruptDataError: the chunk has no rows.
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
    """Yields copies of arrays in chunks.

    Args:
        arrays: a function that returns the arrays by name. It is called again for each chunk, because the arrays may
            have been replaced since the last one.
        max_bytes: the approximate maximum size of a chunk, in bytes.
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
class ChunkAssembler:
    """Assembles arrays from chunks of dense state."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._num_missing: dict[str, int] = {}

    def add(self, chunk: Chunk) -> None:
        """Copies the pieces of a chunk into their arrays.

        Raises:
            CorruptDataError: a piece does not fit its array.
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
                raise CorruptDataError(
                    f"a piece that does not fit the array {piece.name}", received=f"{piece.start} to {end}"
                )
            array.reshape(-1)[piece.start : end] = part
            self._num_missing[piece.name] -= part.size

    def finish(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the complete arrays by name.

        Raises:
            CorruptDataError: a part of an array is missing.
        """
        for name, num_missing in self._num_missing.items():
            if num_missing:
                raise CorruptDataError(f"{num_missing} values of {name} are missing")
        return self._arrays
