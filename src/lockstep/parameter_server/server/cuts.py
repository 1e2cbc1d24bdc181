"""A cut of a server: its state at one closure, read while the server goes on. A cut stops nobody.

A cut at closure N has all pushes of closures below N and no others, as it does on every other server. The coordinator
requests it before it assigns N to a worker. When the first push of N or of a later closure arrives, the server begins
to keep the old values of what such pushes change. Pushes of earlier closures that still arrive change both the old and
the new values. Once all closures below N have ended, no more of their pushes can come, and the cut is complete. It is
then read in chunks, between the pushes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server.chunks import AppliedState, Chunk, ChunkAssembler, ChunkHeader, Stage, cut_into_chunks
from lockstep.parameter_server.protocol import IDS, ROWS, Part, gradients_for, of_kind
from lockstep.parameter_server.server.ledger import PushId, PushLedger
from lockstep.parameter_server.server.shards import DenseCopy, DenseShards
from lockstep.parameter_server.server.table_cuts import TableCut
from lockstep.parameter_server.server.tables import TableShard

MAX_CHUNK_BYTES: Final = 256 << 20


@final
@dataclass(frozen=True, kw_only=True)
class HeldState:
    """Everything that a server holds.

    Attributes:
        dense: its shards.
        tables: its rows, by table name.
        ledger: the pushes that it has applied, or has accepted and will apply with the current synchronous step.
        step: the number of synchronous steps that it has done.
        waiting: the pushes that it has accepted for the current synchronous step.
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
        closure: the closure of the cut. It has not been assigned to a worker yet.
        held: what the server holds now: the beginning of the cut.
        max_bytes: the maximum size of a chunk, in bytes.

    Raises:
        InvalidInputError: the closure, or a later one, has already pushed, or `max_bytes` is not positive or too large.
    """

    def __init__(self, closure: int, held: HeldState, *, max_bytes: int) -> None:
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

    def before_update(
        self, pushes: Sequence[PushId], parts: Sequence[Part], arrays: Mapping[str, Any], *, step: int
    ) -> None:
        """Handles an update that the server is about to apply: keeps the old values, updates the cut too, or both.

        Args:
            pushes: the push; or all pushes of a synchronous step, whose mean the arrays are. The step belongs to the
                cut if one of its pushes does.
            parts: the groups that the dense gradients are for.
            arrays: the gradients and rows.
            step: the number of synchronous steps after this update.
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

    def next_chunk(self, held: HeldState) -> Chunk:
        """Returns the next chunk. Its stage is "waiting" until the cut is complete.

        Raises:
            WrongStateError: all chunks have been read.
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
        """Keeps everything as it is now, because the next change does not belong to the cut. Idempotent."""
        if self._has_begun:
            return
        for table in self._tables.values():
            table.begin()
        if not self._is_dense_read:
            self._copy = self._dense.copy()
        self._has_begun = True

    def _read(self, max_bytes: int) -> Iterator[Chunk]:
        applied = tuple((push.closure, push.number) for push in sorted(self._applied))
        applied_state = AppliedState(
            closure=self._closure, num_applied=self._num_applied, applied=applied, step=self._step
        )
        yield Chunk(header=ChunkHeader(stage=Stage.APPLIED_STATE, applied_state=applied_state))
        yield from cut_into_chunks(lambda: self._dense.state(self._copy), max_bytes=max_bytes)
        self._is_dense_read, self._copy = True, None
        for name, table in self._tables.items():
            yield Chunk.of_rows(name, table.read(max_bytes=max_bytes))
            while not table.is_read:
                yield Chunk.of_rows(name, table.read(max_bytes=max_bytes))
        yield Chunk(header=ChunkHeader(stage=Stage.END))


@final
class Restoration:
    """Restores a server's state from chunks.

    Args:
        applied_state: what the server had applied.
        dense: the server's shards. They are set at the end.
        tables: the server's rows. They are cleared first.
    """

    def __init__(self, applied_state: AppliedState, dense: DenseShards, tables: Mapping[str, TableShard]) -> None:
        self.applied_state = applied_state
        self._dense = dense
        self._tables = tables
        self._assembler = ChunkAssembler()
        for table in tables.values():
            table.clear()

    def add(self, chunk: Chunk) -> bool:
        """Takes the next chunk; returns whether it was the last one.

        Raises:
            InvalidInputError: the chunk is from another server's state.
            CorruptDataError: the chunk does not match its header.
        """
        header = chunk.header
        if header.stage is Stage.DENSE:
            self._assembler.add(chunk)
        elif header.stage is Stage.ROWS:
            if header.table not in self._tables:
                raise InvalidInputError("there is no such table", received=header.table, allowed=sorted(self._tables))
            self._tables[header.table].restore(chunk.rows())
        elif header.stage is Stage.END:
            self._dense.restore(self._assembler.finish())
        return header.stage is Stage.END
