"""Cuts: each server's state at one closure, whatever the order of pushes, and training that does not notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parameter_server.every_optimizer import describe_built

from lockstep.errors import InvalidInputError, LockstepError, WrongStateError
from lockstep.parameter_server.chunks import AppliedState, Chunk, ChunkAssembler, ChunkHeader, Stage
from lockstep.parameter_server.links import Message, Peer, Request
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import (
    Cut,
    Expected,
    Group,
    Mode,
    Part,
    Push,
    Pushed,
    Read,
    Setup,
    TableSpec,
    from_fields,
    to_fields,
)
from lockstep.parameter_server.row_optimizers import LazyAdam, RowSGD
from lockstep.parameter_server.server.server import ParameterServer
from lockstep.strategies.table_rows import RowValues

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_ROWS = 12
READER, WORKER, OTHER = (Peer(route=name.encode(), name=name) for name in ("coordinator", "worker 0", "another"))


class Wire:
    """What a server hears, one request after the other, without a network."""

    def __init__(self) -> None:
        self.replies: list[tuple[Request, Message]] = []
        self._next: Request | None = None
        self._number = 0
        self.gone: list[Peer] = []
        self.server = ParameterServer(self)  # type: ignore[arg-type]  # it stands for a Listener

    def step(self, handle: Any, *, timeout_s: float) -> list[Peer]:
        request, self._next = self._next, None
        if request is not None:
            answer = handle(request)
            if answer is not None:
                self.reply(request, answer)
        gone, self.gone = self.gone, []
        return gone

    def reply(self, request: Request, answer: Message) -> bool:
        self.replies.append((request, answer))
        return True

    def tell(self, message: Message, *, peer: Peer = READER) -> Message | None:
        """Returns the answer; None where it has not come yet."""
        self._number += 1
        self._next = Request(peer=peer, number=self._number, message=message)
        self.replies.clear()
        self.server.step()
        return next((answer for request, answer in self.replies if request.number == self._number), None)


def make_setup(num_servers: int, *, mode: Mode = Mode.ASYNCHRONOUS) -> Setup:
    specs = [VariableSpec(path=f"v{n}", shape=(6, 2), dtype="float32") for n in range(2)]
    specs += [VariableSpec(path=f"mean{n}", shape=(3,), dtype="float32") for n in range(2)]
    placement = place(specs, num_servers=num_servers, partitioner=FixedShardsPartitioner(2))
    variables = [keras.Variable(np.zeros((6, 2)), dtype="float32", name=f"v{n}") for n in range(2)]
    trained = Group(variables=(0, 1), optimizer=describe_built(keras.optimizers.Adam(0.1), variables))
    users = TableSpec(name="users", num_rows=NUM_ROWS, num_columns=2, values=RowValues(seed=1), optimizer=LazyAdam())
    items = replace(users, name="items", optimizer=RowSGD(learning_rate=1.0))
    return Setup(placement=placement, groups=(trained, Group(variables=(2, 3))), tables=(users, items), mode=mode)


@cache
def make_wires(num_servers: int, name: str) -> tuple[Wire, ...]:
    """Servers that are used again, since each new one compiles its updates."""
    setup = make_setup(num_servers)
    wires = tuple(Wire() for _ in range(num_servers))
    for server, wire in enumerate(wires):
        wire.tell(Message(kind="setup", fields=to_fields(replace(setup, server=server))))
    return wires


def restore(wire: Wire, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        wire.tell(chunk.to_message("restore"))


def begin_cut(wire: Wire, closure: int, *, max_bytes: int = 100, peer: Peer = READER) -> None:
    wire.tell(Message(kind="cut", fields=to_fields(Cut(closure=closure, max_bytes=max_bytes))), peer=peer)


def read_next(wire: Wire, *, watermark: int = 0, peer: Peer = READER) -> Chunk:
    answer = wire.tell(Message(kind="read", fields=to_fields(Read(watermark=watermark))), peer=peer)
    assert answer is not None
    return Chunk.from_message(answer)


def read_all(wire: Wire, *, watermark: int) -> Iterator[Chunk]:
    while True:
        chunk = read_next(wire, watermark=watermark)
        assert chunk.header.stage is not Stage.WAITING
        yield chunk
        if chunk.header.stage is Stage.END:
            return


def contents(chunks: list[Chunk]) -> dict[str, np.ndarray[Any, Any]]:
    """All that a server holds, rows that were never met included."""
    assembler, found = ChunkAssembler(), dict[str, np.ndarray[Any, Any]]()
    for chunk in chunks:
        assembler.add(chunk)
        name = chunk.header.table
        if chunk.header.stage is Stage.ROWS:
            rows = chunk.rows()
            if name not in found:
                values = RowValues(seed=1).of(np.arange(NUM_ROWS), num_columns=2, dtype=np.dtype(np.float32))
                found |= {name: values, f"{name}.pushes": np.array(rows.num_pushes)}
                found |= {f"{name}.{kind}": np.zeros_like(values) for kind in rows.state}
            found[name][rows.ids] = rows.values
            for kind, array in rows.state.items():
                found[f"{name}.{kind}"][rows.ids] = array
    return found | assembler.finish()


def assert_same(found: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def push_of(server: int, setup: Setup, closure: int, number: int, *, watermark: int = 0, step: int = 0) -> Message:
    """A push whose gradients come from its name."""
    random = np.random.default_rng([closure, number, server])
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    parts: list[Part] = []
    for place_, group in enumerate(setup.groups):
        size = sum(shard.size for shard in setup.placement.by_server[server] if shard.variable in group.variables)
        if size:
            arrays[f"gradient.{place_}:float32"] = random.standard_normal(size).astype(np.float32)
            parts.append(Part(group=place_))
    num_servers = setup.placement.num_servers
    for name in ("users", "items"):
        mine = np.arange(server, NUM_ROWS, num_servers)
        arrays[f"ids:{name}"] = np.sort(random.choice(mine, len(mine) // 2, replace=False)).astype(np.int64)
        arrays[f"rows:{name}"] = random.standard_normal((len(mine) // 2, 2)).astype(np.float32)
        arrays[f"wanted:{name}"] = random.choice(mine, 1).astype(np.int64)
    push = Push(closure=closure, number=number, parts=tuple(parts), watermark=watermark, step=step)
    return Message(kind="push", fields=to_fields(push), arrays=arrays)


@cache
def beginning(num_servers: int) -> tuple[tuple[Chunk, ...], ...]:
    """What the servers begin with."""
    found: list[tuple[Chunk, ...]] = []
    for wire in make_wires(num_servers, "beginning"):
        begin_cut(wire, 0)
        found.append(tuple(read_all(wire, watermark=0)))
    return tuple(found)


@given(random=st.randoms(use_true_random=False), num_servers=st.integers(1, 3), num_closures=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_a_cut_holds_the_pushes_below_it_and_training_does_not_notice(
    random: Any, num_servers: int, num_closures: int
) -> None:
    setup = make_setup(num_servers)
    closure = random.randint(0, num_closures)
    names = [(c, n) for c in range(num_closures) for n in range(random.randint(1, 2))]
    deliveries = [(server, *name) for server in range(num_servers) for name in names]
    random.shuffle(deliveries)
    early = [delivery for delivery in deliveries if delivery[1] < closure and random.random() < 0.5]
    late = [delivery for delivery in deliveries if delivery not in early]

    def watermark(done: list[tuple[int, int, int]]) -> int:
        return min([c for server, c, n in deliveries if (server, c, n) not in done], default=num_closures)

    wires, reference = make_wires(num_servers, "live"), make_wires(num_servers, "reference")
    for wire, chunks in zip(wires, beginning(num_servers), strict=True):
        restore(wire, list(chunks))
    done: list[tuple[int, int, int]] = []
    read: list[list[Chunk]] = [[] for _ in wires]

    def deliver(delivery: tuple[int, int, int]) -> None:
        server, *name = delivery
        wires[server].tell(push_of(server, setup, *name, watermark=watermark(done)), peer=WORKER)
        if delivery not in done:
            done.append(delivery)

    def look(server: int) -> None:
        if not read[server] or read[server][-1].header.stage is not Stage.END:
            chunk = read_next(wires[server], watermark=watermark(done))
            read[server] += [chunk] if chunk.header.stage is not Stage.WAITING else []

    for delivery in early:
        deliver(delivery)
    for wire in wires:
        begin_cut(wire, closure)
    for delivery in late:
        deliver(delivery)
        if random.random() < 0.3:
            deliver(random.choice(done))  # a closure is run again
        for _ in range(random.randint(0, 3)):
            look(random.randrange(num_servers))
    for server in range(num_servers):
        while not read[server] or read[server][-1].header.stage is not Stage.END:
            look(server)

    order = early + late
    for server, wire in enumerate(reference):
        for limit, chunks in ((closure, read[server]), (num_closures, None)):
            restore(wire, list(beginning(num_servers)[server]))
            own = [(c, n) for s, c, n in order if s == server and c < limit]
            for name in own:
                wire.tell(push_of(server, setup, *name), peer=WORKER)
            if chunks is None:
                begin_cut(wires[server], num_closures)
                chunks = list(read_all(wires[server], watermark=num_closures))
            begin_cut(wire, num_closures)
            assert_same(contents(chunks), contents(list(read_all(wire, watermark=num_closures))))
            assert chunks[0].header.applied_state == AppliedState(closure=limit, num_applied=len(own))


def test_a_push_that_is_in_a_cut_is_not_applied_again_after_it_came_back() -> None:
    setup, (wire,), (other,) = make_setup(1), make_wires(1, "live"), make_wires(1, "reference")
    restore(wire, list(beginning(1)[0]))
    for closure in (0, 1):
        wire.tell(push_of(0, setup, closure, 0))
    begin_cut(wire, 2)
    chunks = list(read_all(wire, watermark=2))
    restore(other, chunks)
    answer = other.tell(push_of(0, setup, 1, 0))
    assert answer is not None
    assert from_fields(Pushed, answer.fields) == Pushed(version=2, is_applied=False, was_applied=True)
    answer = other.tell(push_of(0, setup, 2, 0))
    assert answer is not None
    assert from_fields(Pushed, answer.fields).is_applied


def test_each_reader_has_a_cut_until_it_goes() -> None:
    setup, (wire,) = make_setup(1), make_wires(1, "live")
    restore(wire, list(beginning(1)[0]))
    begin_cut(wire, 1)
    wire.tell(push_of(0, setup, 0, 0))
    begin_cut(wire, 2, peer=OTHER)
    assert read_next(wire).header.stage is Stage.WAITING
    wire.tell(push_of(0, setup, 2, 0))
    for peer, closure in ((READER, 1), (OTHER, 2)):
        applied_state = read_next(wire, watermark=closure, peer=peer).header.applied_state
        assert applied_state == AppliedState(closure=closure, num_applied=1)
    begin_cut(wire, 3)  # the one before had not been ended
    assert read_next(wire, watermark=2).header.stage is Stage.WAITING
    wire.tell(Message(kind="end"))
    with pytest.raises(WrongStateError, match="no cut to be read"):
        read_next(wire)
    wire.gone = [OTHER]
    wire.server.step()
    with pytest.raises(WrongStateError, match="no cut to be read"):
        read_next(wire, peer=OTHER)


def test_a_cut_at_a_closure_that_has_pushed_is_refused() -> None:
    setup, (wire,) = make_setup(1), make_wires(1, "live")
    restore(wire, list(beginning(1)[0]))
    wire.tell(push_of(0, setup, 4, 0))
    with pytest.raises(InvalidInputError, match="given out already; received 4; allowed: 5 or later"):
        begin_cut(wire, 4)
    with pytest.raises(InvalidInputError, match="read at a time; received 0"):
        begin_cut(wire, 5, max_bytes=0)


def test_a_server_answers_nobody_until_all_of_its_state_has_come_back() -> None:
    setup, (wire,) = make_setup(1), make_wires(1, "live")
    *most, end = beginning(1)[0]
    restore(wire, most)
    with pytest.raises(WrongStateError, match="is being restored"):
        wire.tell(push_of(0, setup, 0, 0))
    restore(wire, [*most[:2], *beginning(1)[0]])  # who brings it may begin anew
    assert wire.tell(Message(kind="pull")) is not None
    with pytest.raises(WrongStateError, match="before the header with the applied pushes"):
        restore(wire, [end])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("dense", "of the state of another server", id="dense"),
        pytest.param("table", "no such table; received 'others'; allowed: items, users", id="table"),
        pytest.param("columns", "rows of table users in a checkpoint", id="columns"),
    ],
)
def test_state_that_is_not_the_servers_is_refused(name: str, message: str) -> None:
    (wire,) = make_wires(1, "live")
    chunks = [c for c in beginning(1)[0] if c.header.stage in {Stage.APPLIED_STATE, Stage.DENSE, Stage.END}]
    if name == "dense":
        del chunks[2]
    else:
        header = ChunkHeader(stage=Stage.ROWS, table="others" if name == "table" else "users")
        chunks.insert(-1, Chunk(header=header, arrays={"ids": np.zeros(1, np.int64), "values": np.zeros((1, 3))}))
    with pytest.raises(LockstepError, match=message):
        restore(wire, chunks)
    restore(wire, list(beginning(1)[0]))


def test_a_synchronous_step_is_in_a_cut_or_not() -> None:
    """A step of pushes on both sides belongs to the cut, which then knows the later ones by name."""
    setup = make_setup(1, mode=Mode.SYNCHRONOUS)
    live, reference = Wire(), Wire()
    for wire in (live, reference):
        wire.tell(Message(kind="setup", fields=to_fields(setup)))
        wire.tell(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))

    def push(wire: Wire, closure: int, step: int) -> bool:
        return wire.tell(push_of(0, setup, closure, 0, step=step), peer=WORKER) is not None

    assert not push(live, 0, 0)
    assert push(live, 1, 0)
    assert not push(live, 2, 1)
    begin_cut(live, 3)
    assert read_next(live, watermark=3).header.stage is Stage.WAITING, "closure 2 waits for the other push of its step"
    assert push(live, 3, 1)
    assert not push(live, 4, 2)
    assert push(live, 5, 2)
    found = list(read_all(live, watermark=3))
    assert found[0].header.applied_state == AppliedState(closure=3, num_applied=4, applied=((3, 0),), step=2)
    for closure, step in ((0, 0), (1, 0), (2, 1), (3, 1)):
        push(reference, closure, step)
    begin_cut(reference, 4)
    assert_same(contents(found), contents(list(read_all(reference, watermark=4))))

    restore(reference, found)
    answer = reference.tell(push_of(0, setup, 3, 0, step=2))
    assert answer is not None
    assert not from_fields(Pushed, answer.fields).is_applied
    assert not push(reference, 4, 2)
    assert not push(reference, 5, 2), "nobody has said yet of how many pushes the step is"
    reference.tell(Message(kind="expect", fields=to_fields(Expected(num_pushes=2, step=2))))
    for wire in (live, reference):
        begin_cut(wire, 6)
    assert_same(contents(list(read_all(reference, watermark=6))), contents(list(read_all(live, watermark=6))))
