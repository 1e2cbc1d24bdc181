"""The state of all servers, read at one closure while they go on, and written back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from lockstep.parameter_server import protocol
from lockstep.parameter_server.chunks import (
    CHUNK_BYTES,
    Assembly,
    Chunk,
    ChunkHeader,
    Stage,
    Standing,
    cut_into_chunks,
)
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.protocol import Cut, Read, Setup, to_fields
from lockstep.parameter_server.whole_state import WholeState, gather, scatter
from lockstep.strategies.table_rows import Rows

POLL_S: Final = 0.02


@final
class ClusterCut:
    """What all servers hold at one closure.

    Belongs to one thread; its links are of use to nobody else meanwhile.

    Args:
        links: one to each server, in their order.
        closure: the next one that is given out, once this has returned.
        max_bytes: how much a server gives at a time.

    Raises:
        RemoteError: a server cannot make a cut there.
        UnavailableError: a server is gone.
    """

    def __init__(self, links: Sequence[Link], *, closure: int, max_bytes: int = CHUNK_BYTES) -> None:
        self._links = tuple(links)
        fields = to_fields(Cut(closure=closure, max_bytes=max_bytes))
        for link in self._links:
            link.begin(Message(kind=protocol.CUT, fields=fields))
        for link in self._links:
            link.end()

    def read(self, server: int, *, watermark: Callable[[], int], wait: Callable[[float], object]) -> Iterator[Chunk]:
        """Yields what a server holds, from `Stage.STANDING` to `Stage.END`; waits until its cut is whole.

        A chunk's arrays may be read until the next one is asked for.

        Args:
            server: which one.
            watermark: gives the lowest closure that may still push.
            wait: waits for so many seconds; may raise to give up.

        Raises:
            RemoteError: the server has given the cut up for want of memory.
            UnavailableError: the server is gone.
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
        """Lets the servers forget the cut.

        Raises:
            UnavailableError: a server is gone.
        """
        for link in self._links:
            link.begin(Message(kind=protocol.END))
        for link in self._links:
            link.end()


def read_dense(links: Sequence[Link], setup: Setup, *, closure: int) -> WholeState:
    """Reads the dense state of servers to which nobody pushes: all closures have ended.

    Args:
        links: one to each server, in their order.
        setup: what they keep.
        closure: the next one that is given out.

    Raises:
        RemoteError: a closure has pushed that is not below that one.
        UnavailableError: a server is gone.
    """
    cut = ClusterCut(links, closure=closure)
    states: list[Mapping[str, np.ndarray[Any, Any]]] = []
    for server in range(len(links)):
        assembly = Assembly()
        for chunk in cut.read(server, watermark=lambda: closure, wait=lambda _: None):
            if chunk.header.stage not in {Stage.STANDING, Stage.DENSE}:
                break
            assembly.add(chunk)
        states.append(assembly.finish())
    cut.end()
    return gather(setup, states)


def write_back(
    links: Mapping[int, Link],
    setup: Setup,
    *,
    whole: WholeState,
    standings: Mapping[int, Standing],
    rows: Iterable[tuple[str, Rows]],
) -> None:
    """Gives servers that are set up their state back: all, or some of them.

    Args:
        links: to the servers that get theirs.
        setup: what all of them keep.
        whole: the dense state.
        standings: what each of them has applied.
        rows: of tables by their names, in parts, of all servers: each takes its own.

    Raises:
        InvalidInputError: the state is of another model or optimizer.
        RemoteError: as above, where a server finds it.
        UnavailableError: a server is gone.
    """
    for server, state in enumerate(scatter(setup, whole)):
        if server in links:
            _send(links[server], Chunk(header=ChunkHeader(stage=Stage.STANDING, standing=standings[server])))
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
