"""The state of all servers, read at one closure while they go on, and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from lockstep.parameter_server import protocol
from lockstep.parameter_server.chunks import (
    CHUNK_BYTES,
    AppliedState,
    Chunk,
    ChunkAssembler,
    ChunkHeader,
    Stage,
    cut_into_chunks,
)
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.protocol import Cut, Read, Setup, to_fields
from lockstep.parameter_server.whole_state import WholeState, gather, scatter
from lockstep.strategies.table_rows import Rows

POLL_S: Final = 0.02


@final
class ClusterCut:
    """The state of all servers at one closure.

    Belongs to one thread. Its links must not be used for anything else meanwhile.

    Args:
        links: a link to each server, in the order of the servers.
        closure: the closure to cut at: the next one to be assigned after this constructor has returned.
        max_bytes: the maximum size of a chunk, in bytes.

    Raises:
        RemoteError: a server cannot cut at this closure.
        UnavailableError: a server is lost.
    """

    def __init__(self, links: Sequence[Link], *, closure: int, max_bytes: int = CHUNK_BYTES) -> None:
        self._links = tuple(links)
        fields = to_fields(Cut(closure=closure, max_bytes=max_bytes))
        for link in self._links:
            link.begin(Message(kind=protocol.CUT, fields=fields))
        for link in self._links:
            link.end()

    def read(self, server: int, *, watermark: Callable[[], int], wait: Callable[[float], object]) -> Iterator[Chunk]:
        """Yields the state of a server in chunks, from `Stage.APPLIED_STATE` to `Stage.END`.

        Waits until its cut is complete.

        The arrays of a chunk are valid until the next chunk is requested.

        Args:
            server: the index of the server.
            watermark: a function that returns the lowest closure that may still push.
            wait: a function that waits for a number of seconds. It may raise an error to give up.

        Raises:
            RemoteError: the server has given up the cut, because it was out of memory.
            UnavailableError: the server is lost.
        """
        while True:
            fields = to_fields(Read(watermark=watermark()))
            chunk = Chunk.from_message(self._links[server].request(Message(kind=protocol.READ, fields=fields)))
            if chunk.header.stage is Stage.WAITING:
                wait(POLL_S)
                continue
            yield chunk
            if chunk.header.stage is Stage.END:
                return

    def end(self) -> None:
        """Makes the servers forget the cut.

        Raises:
            UnavailableError: a server is lost.
        """
        for link in self._links:
            link.begin(Message(kind=protocol.END))
        for link in self._links:
            link.end()


def read_dense(links: Sequence[Link], setup: Setup, *, closure: int) -> WholeState:
    """Reads the dense state of servers when no worker pushes: all closures have ended.

    Args:
        links: a link to each server, in the order of the servers.
        setup: what the servers keep.
        closure: the next closure to be assigned.

    Raises:
        RemoteError: this closure, or a later one, has already pushed.
        UnavailableError: a server is lost.
    """
    cut = ClusterCut(links, closure=closure)
    states: list[Mapping[str, np.ndarray[Any, Any]]] = []
    for server in range(len(links)):
        assembler = ChunkAssembler()
        for chunk in cut.read(server, watermark=lambda: closure, wait=lambda _: None):
            if chunk.header.stage not in {Stage.APPLIED_STATE, Stage.DENSE}:
                break
            assembler.add(chunk)
        states.append(assembler.finish())
    cut.end()
    return gather(setup, states)


def write_back(
    links: Mapping[int, Link],
    setup: Setup,
    *,
    whole: WholeState,
    applied_states: Mapping[int, AppliedState],
    rows: Iterable[tuple[str, Rows]],
) -> None:
    """Restores the state of servers that are set up: of all servers, or some of them.

    Args:
        links: the links to the servers to restore, by index.
        setup: what all servers keep.
        whole: the dense state.
        applied_states: what each of these servers has applied.
        rows: the rows of all servers, in parts, with the names of their tables. Each server is sent its own.

    Raises:
        InvalidInputError: the state belongs to another model or optimizer.
        RemoteError: a server finds that the state belongs to another model or optimizer.
        UnavailableError: a server is lost.
    """
    for server, state in enumerate(scatter(setup, whole)):
        if server in links:
            _send(
                links[server],
                Chunk(header=ChunkHeader(stage=Stage.APPLIED_STATE, applied_state=applied_states[server])),
            )
            for chunk in cut_into_chunks(lambda state=state: state, max_bytes=CHUNK_BYTES):
                _send(links[server], chunk)
    num_servers = setup.placement.num_servers
    for table, part in rows:
        for server, link in links.items():
            mine = part.ids % num_servers == server
            own = Rows(
                ids=part.ids[mine],
                values=part.values[mine],
                state={kind: array[mine] for kind, array in part.state.items()},
                num_pushes=part.num_pushes,
            )
            _send(link, Chunk.of_rows(table, own))
    for link in links.values():
        _send(link, Chunk(header=ChunkHeader(stage=Stage.END)))


def _send(link: Link, chunk: Chunk) -> None:
    link.request(chunk.to_message(protocol.RESTORE))
