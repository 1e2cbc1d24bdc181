"""What a server held at a closure, read while it goes on: a cut, which stops nobody.

A cut at closure N holds all pushes of closures below N and no other, as it does on every other server. The coordinator
asks for it before it gives N out. From the first push of N or a later one on, the server keeps what such pushes change
as it was; pushes of before that still come change both. Once all closures below N have ended, nothing of them can come
any more, and the cut is whole: it is read, a piece at a time, between the pushes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server.chunks import Assembly, Chunk, ChunkHeader, Stage, Standing, cut_into_chunks
from lockstep.parameter_server.protocol import IDS, ROWS, Part, gradients_for, of_kind
from lockstep.parameter_server.server.ledger import PushId, PushLedger
from lockstep.parameter_server.server.shards import DenseCopy, DenseShards
from lockstep.parameter_server.server.table_cuts import TableCut
from lockstep.parameter_server.server.tables import TableShard

MAX_CHUNK_BYTES: Final = 256 << 20


@final
@dataclass(frozen=True, kw_only=True)
class Holdings:
    """All that a server holds.

    Attributes:
        dense: its shards.
        tables: its rows, by their tables' names.
        ledger: what it has applied, or has taken and will apply with the running synchronous step.
        step: how many synchronous steps it has done.
        waiting: what it has taken for the running one.
    """

    dense: DenseShards
    tables: Mapping[str, TableShard]
    ledger: PushLedger
    step: int = 0
    waiting: tuple[PushId, ...] = ()


@final
class ServerCut:
    """A cut of one server.

    Args:
        closure: where: it has not been given out yet.
        held: what the server holds now, of which the cut begins.
        max_bytes: how much is read at a time.

    Raises:
        InvalidInputError: the closure has pushed already, or chunks would be of no size or too large.
    """

    def __init__(self, closure: int, held: Holdings, *, max_bytes: int) -> None:
        late = [push for push in held.ledger.applied if push.closure >= closure]
        if late:
            raise InvalidInputError(
                "a cut at a closure that has been given out already",
                received=closure,
                allowed=f"{late[-1].closure + 1} or later",
            )
        if not 0 < max_bytes <= MAX_CHUNK_BYTES:
            raise InvalidInputError(
                "bytes of a cut that are read at a time", received=max_bytes, allowed=f"1 to {MAX_CHUNK_BYTES}"
            )
        self._closure = closure
        self._dense = held.dense
        self._copy: DenseCopy | None = None
        self._is_dense_read = False
        self._tables = {name: TableCut(table) for name, table in held.tables.items()}
        self._has_begun = False
        self._num_applied = held.ledger.num_applied - len(held.waiting)
        self._applied: set[PushId] = set()
        self._step = held.step
        self._chunks = self._read(max_bytes)
        self._is_whole = False

    def before(self, pushes: Sequence[PushId], parts: Sequence[Part], arrays: Mapping[str, Any], *, step: int) -> None:
        """Takes what the server is about to apply: keeps what it changes, or lets the cut have it too, or both.

        Args:
            pushes: the push; or all those of a synchronous step, of which arrays are the mean. The step belongs to the
                cut where one of them does.
            parts: what the dense gradients are of.
            arrays: gradients and rows.
            step: how many synchronous steps will have been done.
        """
        is_in = any(push.closure < self._closure for push in pushes)
        if not is_in:
            self.begin()
        ids, rows = of_kind(IDS, arrays), of_kind(ROWS, arrays)
        if self._has_begun:
            for name, own in ids.items():
                self._tables[name].keep(own)
        if not is_in:
            return
        self._num_applied += len(pushes)
        self._applied |= {push for push in pushes if push.closure >= self._closure}
        self._step = step
        if self._has_begun:
            for part in parts:
                gradients = of_kind(gradients_for(part.group), arrays)
                assert self._copy is not None, "what is not whole has not been read"
                self._dense.apply_to(self._copy, gradients, group=part.group, has_gradient=part.has_gradient)
            for name, own in ids.items():
                self._tables[name].apply(own, rows[name])

    def next_chunk(self, held: Holdings) -> Chunk:
        """Returns the next piece; one that says "waiting" until the cut is whole.

        Raises:
            WrongStateError: all have been read.
        """
        if not self._is_whole:
            is_awaited = any(push.closure < self._closure for push in held.waiting)
            self._is_whole = held.ledger.watermark >= self._closure and not is_awaited
            if not self._is_whole:
                return Chunk(header=ChunkHeader(stage=Stage.WAITING))
        chunk = next(self._chunks, None)
        if chunk is None:
            raise WrongStateError("a cut has been read to its end already")
        return chunk

    def begin(self) -> None:
        """Keeps all as it is: what is about to change is not the cut's. Does nothing twice."""
        if self._has_begun:
            return
        for table in self._tables.values():
            table.begin()
        if not self._is_dense_read:
            self._copy = self._dense.copy()
        self._has_begun = True

    def _read(self, max_bytes: int) -> Iterator[Chunk]:
        applied = tuple((push.closure, push.number) for push in sorted(self._applied))
        standing = Standing(closure=self._closure, num_applied=self._num_applied, applied=applied, step=self._step)
        yield Chunk(header=ChunkHeader(stage=Stage.STANDING, standing=standing))
        yield from cut_into_chunks(lambda: self._dense.state(self._copy), max_bytes=max_bytes)
        self._is_dense_read, self._copy = True, None
        for name, table in self._tables.items():
            yield Chunk.of_rows(name, table.read(max_bytes=max_bytes))
            while not table.is_read:
                yield Chunk.of_rows(name, table.read(max_bytes=max_bytes))
        yield Chunk(header=ChunkHeader(stage=Stage.END))


@final
class Restoration:
    """A server's state that comes back a piece at a time.

    Args:
        standing: what the server had applied.
        dense: the server's shards, which are set at the end.
        tables: its rows, which are forgotten first.
    """

    def __init__(self, standing: Standing, dense: DenseShards, tables: Mapping[str, TableShard]) -> None:
        self.standing = standing
        self._dense = dense
        self._tables = tables
        self._assembly = Assembly()
        for table in tables.values():
            table.clear()

    def add(self, chunk: Chunk) -> bool:
        """Takes the next piece; returns whether that was the last.

        Raises:
            InvalidInputError: it is of another server's state.
            CorruptDataError: it is not what it says.
        """
        header = chunk.header
        if header.stage is Stage.DENSE:
            self._assembly.add(chunk)
        elif header.stage is Stage.ROWS:
            if header.table not in self._tables:
                raise InvalidInputError("there is no such table", received=header.table, allowed=sorted(self._tables))
            self._tables[header.table].restore(chunk.rows())
        elif header.stage is Stage.END:
            self._dense.restore(self._assembly.finish())
        return header.stage is Stage.END
