"""A worker's part of ``fit``: a closure is of one step or several, and each step of one exchange with the servers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, final

import numpy as np
from typing_extensions import override

from lockstep.errors import UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.working import AbstractFunction, Call, Ended, GiveBackError
from lockstep.parameter_server.embedding.lookups import Wanted
from lockstep.parameter_server.fitting.data import AbstractBatches
from lockstep.parameter_server.fitting.step import Computed, FitStep
from lockstep.parameter_server.links.client import RemoteError, Waiting
from lockstep.parameter_server.protocol import Mode, Push, Setup
from lockstep.parameter_server.servers import Pulled, Servers
from lockstep.strategies.epochs import leading_dim

RETRY_S: Final = 0.2
LOOK_EVERY_S: Final = 3.0


@final
@dataclass(kw_only=True)
class _Steps:
    """What has come of a closure's steps so far.

    Attributes:
        number: the closure's.
        num_steps: how many it is of.
        num_pushed: of how many the servers have answered.
        metrics: by how much the metrics' variables have changed in these, by dtype.
        num_rows: of their batches.
        staleness: the sum of theirs.
        is_applied: whether a push of theirs was in time for any server, now or when another worker ran the closure.
        step: the servers' synchronous step; one that was lost may be behind until the coordinator begins the next.
    """

    number: int
    num_steps: int
    num_pushed: int = 0
    metrics: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    num_rows: int = 0
    staleness: int = 0
    is_applied: bool = False
    step: int = 0

    def add(self, computed: Computed, pulled: Pulled, *, num_rows: int) -> None:
        """Adds what came of the next step."""
        self.num_pushed += 1
        for dtype, array in computed.metrics.items():
            change = np.asarray(array)
            self.metrics[dtype] = self.metrics[dtype] + change if dtype in self.metrics else change
        self.num_rows += num_rows
        self.staleness += pulled.staleness
        self.is_applied |= any(state.is_applied or state.was_applied for state in pulled.states)
        self.step = max(state.step for state in pulled.states)

    def ended(self) -> list[Ended]:
        """Returns what the closure returns, once all its steps have ended."""
        if self.num_pushed < self.num_steps:
            return []
        value = {
            "metrics": self.metrics,
            "num_steps": self.num_steps,
            "num_rows": self.num_rows,
            "staleness": self.staleness,
            "is_applied": self.is_applied,
            "step": self.step,
        }
        return [Ended(number=self.number, value=value)]


@final
@dataclass(kw_only=True)
class _Step:
    """A step that has begun, and has not been pushed.

    Attributes:
        steps: those of its closure.
        push: what it will be pushed as.
        batch: its batch.
        wanted: the rows that it uses.
        pulled: the values that it begins with.
        computed: its gradients; None before it is computed.
    """

    steps: _Steps
    push: Push
    batch: Any
    wanted: Wanted
    pulled: Pulled
    computed: Computed | None = None


_Prepared: TypeAlias = tuple[Any, Wanted]
"""A batch, and the rows that it uses."""


@final
class _Upcoming:
    """A closure's batches: the next one may be prepared while there is nothing else to do.

    Args:
        numbers: theirs, in the order in which they are taken.
        prepare: reads the batch of a number.
    """

    def __init__(self, numbers: Iterable[int], prepare: Callable[[int], _Prepared]) -> None:
        self._numbers = deque(numbers)
        self._prepare = prepare
        self._next: Future[_Prepared] | None = None

    def __len__(self) -> int:
        return len(self._numbers) + (self._next is not None)

    def prepare(self) -> None:
        """Prepares the next one, if there is one; what that raises, `take` raises."""
        if self._next is not None or not self._numbers:
            return
        self._next = Future()
        try:
            self._next.set_result(self._prepare(self._numbers.popleft()))
        except Exception as error:  # of the script's own data: any
            self._next.set_exception(error)

    def take(self) -> _Prepared:
        """Returns the next one."""
        self.prepare()
        taken, self._next = self._next, None
        assert taken is not None, "there is one"
        return taken.result()


@final
class FitFunction(AbstractFunction):
    """Runs a model's training steps.

    Args:
        cluster: where the servers are.
        setup: what they keep.
        step: computes.
        batches: this worker's.
        overlaps: whether a step begins with the parameters that are there while the push before it is under way.
        holds: whether a step's push waits for the next closure, whose rows come with its answer.
    """

    def __init__(
        self, cluster: Cluster, *, setup: Setup, step: FitStep, batches: AbstractBatches, overlaps: bool, holds: bool
    ) -> None:
        self._cluster = cluster
        self._setup = setup
        self._step = step
        step.forget()  # another coordinator's servers have other values
        self._batches = batches
        self._overlaps = overlaps
        self._servers = join_servers(cluster, setup)
        self._pulled: Pulled | None = None
        self._num_writes = self._num_restores = 0
        self._holds = holds
        self._steps: deque[_Step] = deque()
        self._lost: list[int] = []
        self._ended: list[Ended] = []  # told of by the next call that ends well, or when all is forgotten

    @override
    def begin(self, call: Call) -> Sequence[Ended]:
        (options,) = call.args
        if options["num_restores"] != self._num_restores:
            self._num_restores = options["num_restores"]
            self._step.forget()
        if options["num_writes"] != self._num_writes:  # the coordinator has set the values anew
            self._num_writes = options["num_writes"]
            self._pulled = None
        seed, step = int(options["seed"]), int(options["round"])
        if self._setup.mode is Mode.SYNCHRONOUS and not self._has_values_of(step):
            self._pulled = None
        upcoming = _Upcoming(map(int, call.chosen["batches"]), lambda number: self._prepare(number, seed=seed))
        steps = _Steps(number=call.number, num_steps=len(upcoming))
        for place in range(len(upcoming)):
            prepared = upcoming.take()
            push = Push(
                closure=call.number,
                number=place,
                step=step,
                num_rows=leading_dim(prepared[0]),
                watermark=call.watermark,
            )
            try:
                self._begin(steps, push, prepared, meanwhile=upcoming.prepare)
            except UnavailableError as error:
                raise GiveBackError(str(error)) from error
        return self._told()

    def _has_values_of(self, step: int) -> bool:
        """Whether the values that are here are those that a synchronous step begins with.

        Others may have ended one or more since this worker's last push was answered.
        """
        return self._pulled is not None and all(state.step == step for state in self._pulled.states)

    def _prepare(self, number: int, *, seed: int) -> _Prepared:
        batch = self._batches.batch(number, seed=seed)
        return batch, self._step.wanted(batch)

    def _begin(self, steps: _Steps, push: Push, prepared: _Prepared, *, meanwhile: Callable[[], None]) -> None:
        batch, wanted = prepared
        if len(self._steps) == (2 if self._overlaps else 1):
            self._push(self._steps.popleft(), wanted=wanted, meanwhile=meanwhile)
            pulled = self._pulled
        elif self._pulled is None or self._steps or (self._overlaps and wanted.ids):  # the first ones
            pulled = self._pulled = self._servers.pull(wanted=wanted.ids)
        else:
            pulled = self._pulled
            if wanted.ids:
                rows = self._servers.pull(wanted=wanted.ids, is_answered_by_values=False).rows
                pulled = replace(pulled, rows=rows)
        assert pulled is not None, "it was pulled"
        self._steps.append(_Step(steps=steps, push=push, batch=batch, wanted=wanted, pulled=pulled))
        if not self._overlaps:
            self._compute(self._steps[-1])
        if not self._holds:
            self._finish()

    def _compute(self, step: _Step) -> Computed:
        if step.computed is None:
            step.computed = self._step.run(step.pulled.dense, step.batch, wanted=step.wanted, rows=step.pulled.rows)
        return step.computed

    @override
    def finish(self) -> Sequence[Ended]:
        try:
            self._finish()
        except UnavailableError as error:
            raise GiveBackError(str(error)) from error
        return self._told()

    def _finish(self) -> None:
        while self._steps:
            self._push(self._steps.popleft())

    def _told(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    @override
    def under_way(self) -> Sequence[int]:
        return list(dict.fromkeys([*self._lost, *(step.push.closure for step in self._steps)]))

    @override
    def forget(self) -> Sequence[Ended]:
        for step in self._steps:
            if step.computed is not None:
                self._step.take_back(step.computed)
        self._steps.clear()
        self._lost.clear()
        return self._told()

    @override
    def recover(self, meanwhile: Callable[[], None]) -> None:
        self._servers.close()
        self._pulled = None
        self._servers = join_servers(self._cluster, self._setup, meanwhile=meanwhile)

    def close(self) -> None:
        """Hangs up. Idempotent."""
        self._servers.close()

    def _push(self, step: _Step, *, wanted: Wanted | None = None, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Pushes a step's gradients, and pulls what another begins with; the one in between is computed meanwhile."""
        self._lost.append(step.push.closure)
        computed, ids = self._compute(step), step.wanted.ids
        gradients = computed.to_host()  # one step at a time is computed
        rows = {name: (ids[name], np.asarray(changes)[: len(ids[name])]) for name, changes in computed.rows.items()}
        with self._step.pushing(step.push, computed, servers=self._servers):
            self._servers.begin_push(
                step.push,
                gradients=gradients,
                parts=computed.parts,
                versions=[state.version for state in step.pulled.states],
                rows=rows,
                wanted={} if wanted is None else wanted.ids,
            )
            if self._steps:
                self._compute(self._steps[0])
            meanwhile()
            self.awaits_servers = True
            try:
                self._pulled = self._servers.end_push()
            finally:
                self.awaits_servers = False
        self._lost.remove(step.push.closure)
        self._step.settle(step.push, computed, outcomes=self._pulled.states)
        step.steps.add(computed, self._pulled, num_rows=step.push.num_rows)
        self._ended += step.steps.ended()


def join_servers(cluster: Cluster, setup: Setup, *, meanwhile: Callable[[], None] = lambda: None) -> Servers:
    """Connects to the servers, and shows them that this process runs the same model.

    A server that has just been started waits for the coordinator to tell it what it keeps.

    Args:
        cluster: where they are.
        setup: what they keep.
        meanwhile: called again and again while they are not there; what it raises ends the wait.

    Raises:
        RemoteError: this process runs another model.
        UnavailableError: a server is not there in time.
    """
    deadline, waiting = time.monotonic() + cluster.start_within_s, Waiting()
    while True:
        servers: Servers | None = None
        try:
            servers = cluster.reach_servers(within_s=LOOK_EVERY_S)
            servers.join(setup)
        except (RemoteError, UnavailableError) as error:
            if servers is not None:
                servers.close()
            has_time = time.monotonic() < deadline
            if not has_time or (isinstance(error, RemoteError) and error.error != "WrongStateError"):
                raise
            waiting.tell(f"{cluster.who} waits for the parameter servers: {error}")
            meanwhile()
            time.sleep(RETRY_S)
        except BaseException:
            if servers is not None:
                servers.close()
            raise
        else:
            return servers
