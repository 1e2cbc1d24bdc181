"""A parameter server: keeps its part of the parameters, applies the pushes of workers, and returns the values.

Everything happens in one thread. So a push is applied whole or not at all, and a pull never sees a part of one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, LockstepError, WrongStateError
from lockstep.parameter_server import protocol
from lockstep.parameter_server.chunks import Chunk
from lockstep.parameter_server.links import Listener, Message, Request
from lockstep.parameter_server.protocol import (
    DENSE,
    IDS,
    ROWS,
    WANTED,
    Awaited,
    Begun,
    Cut,
    Expected,
    Mode,
    Push,
    Pushed,
    Rate,
    Read,
    Setup,
    from_fields,
    gradients_for,
    named,
    of_kind,
    to_fields,
)
from lockstep.parameter_server.server.cuts import HeldState, Restoration, ServerCut
from lockstep.parameter_server.server.expansion import expand
from lockstep.parameter_server.server.ledger import PushId, PushLedger
from lockstep.parameter_server.server.shards import DenseShards
from lockstep.parameter_server.server.synchronous_steps import SynchronousStep
from lockstep.parameter_server.server.tables import TableShard

LOGGER: Final = logging.getLogger(__name__)


@final
class ParameterServer:
    """Answers requests until it is told that the training is done.

    Args:
        listener: the source of the requests.

    Attributes:
        num_requests: the number of requests received, by kind.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.num_requests: Counter[str] = Counter()
        self._setup: Setup | None = None
        self._dense: DenseShards | None = None
        self._tables: dict[str, TableShard] = {}
        self._has_values = False
        self._was_begun = False
        self._ledger = PushLedger()
        self._open_step = SynchronousStep()
        self._cuts: dict[bytes, ServerCut] = {}  # one per reader
        self._restoration: Restoration | None = None
        self._watching: list[Request] = []  # answered at the end of the training
        self._is_done = False
        self._kinds = {
            protocol.SETUP: self._set_up,
            protocol.BEGIN: self._begin,
            protocol.WRITE: self._write,
            protocol.JOIN: self._join,
            protocol.PUSH: self._push,
            protocol.PULL: self._pull,
            protocol.EXPECT: self._expect,
            protocol.CUT: self._begin_cut,
            protocol.READ: self._read_cut,
            protocol.END: self._end_cut,
            protocol.RESTORE: self._restore,
            protocol.RATE: self._set_rate,
            protocol.STATE: self._read_state,
            protocol.WATCH: self._watch,
            protocol.CLEAR: self._clear,
            protocol.DONE: self._finish,
        }

    @property
    def is_done(self) -> bool:
        """Whether it was told that the training is done."""
        return self._is_done

    @property
    def num_applied(self) -> int:
        """The number of applied pushes."""
        return self._ledger.num_applied

    def run(self) -> None:
        """Answers requests until it is told that the training is done. Blocks."""
        while not self._is_done:
            self.step()

    def step(self, *, timeout_s: float = 0.25) -> None:
        """Answers the requests that are there, and waits at most `timeout_s` seconds for one."""
        for peer in self._listener.step(self._handle, timeout_s=timeout_s):
            self._cuts.pop(peer.route, None)
            self._watching = [request for request in self._watching if request.peer is not peer]

    def _handle(self, request: Request) -> Message | None:
        handle = self._kinds.get(request.message.kind)
        if handle is None:
            raise InvalidInputError(
                "a parameter server has no such request", received=request.message.kind, allowed=sorted(self._kinds)
            )
        self.num_requests[request.message.kind] += 1
        return handle(request)

    def _set_up(self, request: Request) -> Message:
        setup = from_fields(Setup, request.message.fields)
        if self._setup is None:
            self._make(setup)
            self._setup = setup
        elif self._setup != setup:
            raise WrongStateError(
                "a parameter server keeps another model already", action="restart the servers for another training"
            )
        return Message(kind="ok")

    def _make(self, setup: Setup) -> None:
        self._dense = DenseShards(setup.placement, server=setup.server, groups=setup.groups)
        num_servers = setup.placement.num_servers
        self._tables = {
            table.name: TableShard(table, server=setup.server, num_servers=num_servers) for table in setup.tables
        }
        self._open_step = SynchronousStep(
            summed_groups=[number for number, group in enumerate(setup.groups) if group.is_summed]
        )

    def _begin(self, request: Request) -> Message:
        """Forgets what an earlier coordinator trained: one that was killed and replaced by a new one."""
        self._restoration = None  # its coordinator died before the end of it
        setup, _ = self._ready()
        if self._was_begun and self._has_values:
            LOGGER.warning("%s begins a new training; the previous values are discarded", request.peer.name)
            self._release([*self._open_step.waiting, *self._open_step.waiting_again])
            self._make(setup)
            self._cuts.clear()
            self._has_values = False
        first_closure = self._ledger.begin_run(is_first=not self._was_begun)
        self._was_begun = True
        return Message(kind="ok", fields=to_fields(Begun(first_closure=first_closure)))

    def _release(self, waiting: Sequence[tuple[Request, Push]]) -> None:
        """Answers requests that wait for a synchronous step that will never end. Their pushes do not count."""
        for request, push in waiting:
            self._reply(request, push, self._state(is_applied=False))

    def _reply(self, request: Request, push: Push, state: Pushed) -> None:
        """Answers one of several waiting requests. An error, such as out of memory, affects this request alone."""
        try:
            answer = self._answer(request, push, state)
        except Exception as error:
            self._listener.refuse(request, error)
        else:
            self._listener.reply(request, answer)

    def _write(self, request: Request) -> Message:
        _, dense = self._ready()
        self._for_cuts(ServerCut.begin)  # they were requested before the write
        dense.write(of_kind(DENSE, request.message.arrays))
        self._has_values = True
        return Message(kind="ok")

    def _join(self, request: Request) -> Message:
        setup, _ = self._ready()
        if not self._has_values:
            raise WrongStateError("a parameter server has no values yet")
        if request.message.fields.get("signature") != setup.signature:
            raise InvalidInputError(
                f"{request.peer.name} has another model, optimizer or partitioner than the coordinator",
                action="run the same script in every process, with the same versions of what it imports",
            )
        return Message(kind="ok", fields=to_fields(self._state()))

    def _push(self, request: Request) -> Message | None:
        setup, dense = self._ready()
        push = from_fields(Push, request.message.fields)
        push, arrays = expand(push, request.message.arrays, dense=dense, groups=setup.groups)
        self._check(dense, push, arrays)  # everything, before any part of it counts
        self._ledger.raise_watermark(push.watermark)
        name = PushId(closure=push.closure, number=push.number)
        if setup.mode is Mode.SYNCHRONOUS:
            is_in_time = push.step == self._open_step.step
            if is_in_time:
                self._open_step.check(push)
            if is_in_time and self._ledger.record(name):
                self._open_step.add(request, push, arrays)
                self._end_step()
                return None
            if name in self._open_step.pushes:
                self._open_step.add_again(request, push)
                return None
            state = self._state(is_applied=False, was_applied=name in self._ledger)
            return self._answer(request, push, state)
        # After a restore from a checkpoint, the server may have applied fewer pushes than when the values were pulled.
        staleness = max(0, self._ledger.num_applied - push.pulled_version)
        is_new = self._ledger.record(name)
        if is_new:
            self._apply(dense, push, arrays, pushes=(name,))
        state = self._state(is_applied=is_new, was_applied=not is_new, staleness=staleness if is_new else 0)
        return self._answer(request, push, state)

    def _check(self, dense: DenseShards, push: Push, arrays: Any) -> None:
        rows = of_kind(ROWS, arrays)
        for part in push.parts:
            gradients = of_kind(gradients_for(part.group), arrays)
            dense.check(gradients, group=part.group, has_gradient=part.has_gradient)
        for name, ids in of_kind(IDS, arrays).items():
            if name not in rows:
                raise InvalidInputError(f"ids of table {name} without gradients")
            self._table(name).check(ids, rows[name])
        for name, ids in of_kind(WANTED, arrays).items():
            self._table(name).indices(ids)

    def _apply(self, dense: DenseShards, push: Push, arrays: Any, *, pushes: tuple[PushId, ...]) -> None:
        step = self._open_step.step
        self._for_cuts(lambda cut: cut.before_update(pushes, push.parts, arrays, step=step))
        for part in push.parts:
            gradients = of_kind(gradients_for(part.group), arrays)
            dense.apply(gradients, group=part.group, has_gradient=part.has_gradient)
        rows = of_kind(ROWS, arrays)
        for name, ids in of_kind(IDS, arrays).items():
            self._table(name).apply(ids, rows[name])

    def _end_step(self) -> None:
        """Applies a synchronous step once enough workers have pushed for it, and answers all of them."""
        _, dense = self._ready()
        if not self._open_step.is_full:
            return
        waiting, again, pushes = self._open_step.waiting, self._open_step.waiting_again, self._open_step.pushes
        step = self._open_step.step
        try:
            push, arrays = self._open_step.mean()
            self._open_step.begin_next()
            self._apply(dense, push, arrays, pushes=pushes)
        except Exception as error:  # everyone who waits for the step must get the error: nothing else ends the wait
            self._open_step.restart(step=step + 1)
            for request, _ in [*waiting, *again]:
                self._listener.refuse(request, error)
            return
        for request, own in waiting:
            self._reply(request, own, self._state())
        for request, own in again:
            self._reply(request, own, self._state(is_applied=False, was_applied=True))

    def _expect(self, request: Request) -> Message:
        expected = from_fields(Expected, request.message.fields)
        num_skipped_steps = max(0, expected.step - self._open_step.step)
        if num_skipped_steps:
            self._begin_step(expected.step)
        if expected.step == self._open_step.step:  # otherwise the message is about a step that has ended meanwhile
            self._open_step.expect(expected.num_pushes)
            self._end_step()
        return Message(kind="ok", fields=to_fields(Awaited(num_skipped_steps=num_skipped_steps)))

    def _begin_step(self, step: int) -> None:
        """Leaves a synchronous step that has ended on the other servers.

        They received all its pushes, while this server was lost for a time and missed some of them.
        """
        waiting = [*self._open_step.waiting, *self._open_step.waiting_again]
        self._ledger.drop(self._open_step.pushes)
        self._open_step.restart(step=step)
        self._release(waiting)

    def _for_cuts(self, keep: Callable[[ServerCut], object]) -> None:
        for reader, cut in list(self._cuts.items()):
            try:
                keep(cut)
            except (LockstepError, MemoryError, RuntimeError) as error:  # RuntimeError: XLA is out of memory
                LOGGER.warning("a cut was given up: out of memory: %s", error)
                del self._cuts[reader]

    def _begin_cut(self, request: Request) -> Message:
        cut = from_fields(Cut, request.message.fields)
        self._cuts.pop(request.peer.route, None)  # a previous cut that the reader has not ended
        self._cuts[request.peer.route] = ServerCut(cut.closure, self._held_state(), max_bytes=cut.max_bytes)
        return Message(kind="ok")

    def _read_cut(self, request: Request) -> Message:
        read = from_fields(Read, request.message.fields)
        held = self._held_state()
        cut = self._cuts.get(request.peer.route)
        if cut is None:
            raise WrongStateError("there is no cut to be read", action="begin one over the same link")
        self._ledger.raise_watermark(read.watermark)
        return cut.next_chunk(held).to_message("chunk")

    def _end_cut(self, request: Request) -> Message:
        self._cuts.pop(request.peer.route, None)
        return Message(kind="ok")

    def _restore(self, request: Request) -> Message:
        chunk = Chunk.from_message(request.message)
        if chunk.header.applied_state is not None:
            self._restoration = None  # a previous one that was not completed
            _, dense = self._ready()
            self._cuts.clear()
            self._restoration = Restoration(chunk.header.applied_state, dense, self._tables)
        if self._restoration is None:
            raise WrongStateError("restore chunks arrived before the header with the applied pushes")
        if self._restoration.add(chunk):
            applied_state, self._restoration = self._restoration.applied_state, None
            self._has_values = self._was_begun = True
            applied = [PushId(closure=closure, number=number) for closure, number in applied_state.applied]
            self._ledger = PushLedger(
                watermark=applied_state.closure, applied=applied, num_applied=applied_state.num_applied
            )
            self._release([*self._open_step.waiting, *self._open_step.waiting_again])
            self._open_step.restart(step=applied_state.step, is_known=False)
        return Message(kind="ok")

    def _held_state(self) -> HeldState:
        _, dense = self._ready()
        return HeldState(
            dense=dense,
            tables=self._tables,
            ledger=self._ledger,
            step=self._open_step.step,
            waiting=self._open_step.pushes,
        )

    def _set_rate(self, request: Request) -> Message:
        _, dense = self._ready()
        rate = from_fields(Rate, request.message.fields)
        self._for_cuts(ServerCut.begin)
        dense.set_learning_rate(rate.learning_rate, group=rate.group)
        for name in rate.tables:
            self._table(name).set_learning_rate(rate.learning_rate)
        return Message(kind="ok")

    def _read_state(self, request: Request) -> Message:
        _, dense = self._ready()
        return Message(kind="state", arrays=dense.state(), may_be_overwritten=True)

    def _pull(self, request: Request) -> Message:
        has_values = request.message.fields.get("is_answered_by_values") is not False
        return self._answer(request, Push(closure=-1, is_answered_by_values=has_values), self._state())

    def _answer(self, request: Request, push: Push, state: Pushed) -> Message:
        _, dense = self._ready()
        arrays = named(DENSE, dense.read()) if push.is_answered_by_values else {}
        for name, ids in of_kind(WANTED, request.message.arrays).items():
            arrays[f"{ROWS}:{name}"] = self._table(name).read(ids)
        return Message(kind="values", fields=to_fields(state), arrays=arrays, may_be_overwritten=True)

    def _state(self, *, is_applied: bool = True, was_applied: bool = False, staleness: int = 0) -> Pushed:
        return Pushed(
            version=self._ledger.num_applied,
            step=self._open_step.step,
            is_applied=is_applied,
            was_applied=was_applied,
            staleness=staleness,
        )

    def _watch(self, request: Request) -> None:
        self._ready()
        if not self._has_values:
            raise WrongStateError("a parameter server has no values yet")
        self._watching.append(request)

    def _clear(self, request: Request) -> Message:
        """Forgets the model, whose training is over, and waits for the setup of the script's next one."""
        self._answer_watching()
        self._release([*self._open_step.waiting, *self._open_step.waiting_again])
        self._setup = self._dense = self._restoration = None
        self._tables.clear()
        self._cuts.clear()
        self._has_values = False
        return Message(kind="ok")

    def _finish(self, request: Request) -> Message:
        self._is_done = True
        self._answer_watching()
        return Message(kind="ok")

    def _answer_watching(self) -> None:
        for watching in self._watching:
            self._listener.reply(watching, Message(kind="ok"))
        self._watching.clear()

    def _table(self, name: str) -> TableShard:
        if name not in self._tables:
            raise InvalidInputError("there is no such table", received=name, allowed=sorted(self._tables))
        return self._tables[name]

    def _ready(self) -> tuple[Setup, DenseShards]:
        if self._setup is None or self._dense is None:
            raise WrongStateError("the parameter server has not been set up yet")
        if self._restoration is not None:
            raise WrongStateError("the parameter server is being restored", action="try again in a moment")
        return self._setup, self._dense
