"""A parameter server: it keeps its part of the parameters, applies what workers push, and gives the values out.

All happens in one thread, so that a push is applied whole or not at all, and a pull sees no half of one.
"""

from __future__ import annotations

from typing import Any, final

from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server import protocol
from lockstep.parameter_server.links import Listener, Message, Request
from lockstep.parameter_server.protocol import (
    DENSE,
    IDS,
    ROWS,
    WANTED,
    Expected,
    Mode,
    Push,
    Pushed,
    Setup,
    from_fields,
    gradients_for,
    named,
    of_kind,
    to_fields,
)
from lockstep.parameter_server.server.ledger import PushId, PushLedger
from lockstep.parameter_server.server.rounds import Round
from lockstep.parameter_server.server.shards import DenseShards
from lockstep.parameter_server.server.tables import TableShard


@final
class ParameterServer:
    """Answers requests, until it is told that the training is done.

    Args:
        listener: where they come in.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._setup: Setup | None = None
        self._dense: DenseShards | None = None
        self._tables: dict[str, TableShard] = {}
        self._ledger = PushLedger()
        self._round = Round()
        self._is_done = False
        self._kinds = {
            protocol.SETUP: self._set_up,
            protocol.WRITE: self._write,
            protocol.JOIN: self._join,
            protocol.PUSH: self._push,
            protocol.PULL: self._pull,
            protocol.EXPECT: self._expect,
            protocol.DONE: self._finish,
        }

    def run(self) -> None:
        """Answers until it is told that the training is done. Blocks."""
        while not self._is_done:
            self.step()

    def step(self, *, timeout_s: float = 0.25) -> None:
        """Answers what there is, for so long at the most."""
        self._listener.step(self._handle, timeout_s=timeout_s)

    def _handle(self, request: Request) -> Message | None:
        handle = self._kinds.get(request.message.kind)
        if handle is None:
            raise InvalidInputError(
                "a parameter server has no such request", received=request.message.kind, allowed=sorted(self._kinds)
            )
        return handle(request)

    def _set_up(self, request: Request) -> Message:
        setup = from_fields(Setup, request.message.fields)
        if self._setup is None:
            self._dense = DenseShards(setup.placement, server=setup.server, groups=setup.groups)
            num_servers = setup.placement.num_servers
            self._tables = {
                table.name: TableShard(table, server=setup.server, num_servers=num_servers) for table in setup.tables
            }
            self._round = Round(summed_groups=[number for number, group in enumerate(setup.groups) if group.is_summed])
            self._setup = setup
        elif self._setup != setup:
            raise WrongStateError(
                "a parameter server keeps another model already", action="start the servers anew for another training"
            )
        return Message(kind="ok")

    def _write(self, request: Request) -> Message:
        _, dense = self._ready()
        dense.write(of_kind(DENSE, request.message.arrays))
        return Message(kind="ok")

    def _join(self, request: Request) -> Message:
        setup, _ = self._ready()
        if request.message.fields.get("signature") != setup.signature:
            raise InvalidInputError(
                f"{request.peer.name} has another model, optimizer or partitioner than the coordinator",
                action="run the same script in every process, with the same versions of what it imports",
            )
        return Message(kind="ok", fields=to_fields(self._state()))

    def _push(self, request: Request) -> Message | None:
        setup, dense = self._ready()
        push = from_fields(Push, request.message.fields)
        self._check(dense, push, request.message.arrays)  # all of it, before any of it counts
        self._ledger.raise_watermark(push.watermark)
        name = PushId(closure=push.closure, number=push.number)
        if setup.mode is Mode.SYNCHRONOUS:
            is_in_time = push.step == self._round.step
            if is_in_time:
                self._round.check(push)
            if is_in_time and self._ledger.take(name):
                self._round.add(request, push)
                self._end_round()
                return None
            return self._answer(request, push, self._state(is_applied=False))
        staleness = self._ledger.num_applied - push.pulled_version
        is_new = self._ledger.take(name)
        if is_new:
            self._apply(dense, push, request.message.arrays)
        return self._answer(request, push, self._state(is_applied=is_new, staleness=staleness if is_new else 0))

    def _check(self, dense: DenseShards, push: Push, arrays: Any) -> None:
        rows = of_kind(ROWS, arrays)
        for part in push.parts:
            gradients = of_kind(gradients_for(part.group), arrays)
            dense.check(gradients, group=part.group, has_gradient=part.has_gradient)
        for name, ids in of_kind(IDS, arrays).items():
            if name not in rows:
                raise InvalidInputError(f"ids of table {name} without gradients")
            self._table(name).check(ids, rows[name])

    def _apply(self, dense: DenseShards, push: Push, arrays: Any) -> None:
        for part in push.parts:
            gradients = of_kind(gradients_for(part.group), arrays)
            dense.apply(gradients, group=part.group, has_gradient=part.has_gradient)
        rows = of_kind(ROWS, arrays)
        for name, ids in of_kind(IDS, arrays).items():
            self._table(name).apply(ids, rows[name])

    def _end_round(self) -> None:
        """Applies a synchronous step once enough have pushed for it, and lets all of them go on."""
        _, dense = self._ready()
        if not self._round.is_full:
            return
        waiting = self._round.waiting
        push, arrays = self._round.mean()
        self._round.begin_next()
        self._apply(dense, push, arrays)
        for request, own in waiting:
            self._listener.reply(request, self._answer(request, own, self._state()))

    def _expect(self, request: Request) -> Message:
        self._round.expect(from_fields(Expected, request.message.fields).num_pushes)
        self._end_round()
        return Message(kind="ok")

    def _pull(self, request: Request) -> Message:
        return self._answer(request, Push(closure=-1), self._state())

    def _answer(self, request: Request, push: Push, state: Pushed) -> Message:
        _, dense = self._ready()
        arrays = named(DENSE, dense.read()) if push.is_answered_by_values else {}
        for name, ids in of_kind(WANTED, request.message.arrays).items():
            arrays[f"{ROWS}:{name}"] = self._table(name).read(ids)
        return Message(kind="values", fields=to_fields(state), arrays=arrays)

    def _state(self, *, is_applied: bool = True, staleness: int = 0) -> Pushed:
        return Pushed(
            version=self._ledger.num_applied, step=self._round.step, is_applied=is_applied, staleness=staleness
        )

    def _finish(self, request: Request) -> Message:
        self._is_done = True
        return Message(kind="ok")

    def _table(self, name: str) -> TableShard:
        if name not in self._tables:
            raise InvalidInputError("there is no such table", received=name, allowed=sorted(self._tables))
        return self._tables[name]

    def _ready(self) -> tuple[Setup, DenseShards]:
        if self._setup is None or self._dense is None:
            raise WrongStateError("a parameter server was not told yet what it keeps")
        return self._setup, self._dense
