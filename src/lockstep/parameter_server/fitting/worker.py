"""A worker's part of ``fit``: a closure has one or several steps, and each step is one exchange with the servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, final

import numpy as np
from typing_extensions import override

from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.working import AbstractFunction, Call, Ended
from lockstep.parameter_server.embedding.lookups import Wanted
from lockstep.parameter_server.exchanging.exchange import Exchange
from lockstep.parameter_server.fitting.data import AbstractBatches
from lockstep.parameter_server.fitting.step import Computed, FitStep
from lockstep.parameter_server.protocol import Mode, Push, Setup
from lockstep.parameter_server.servers import Pulled
from lockstep.strategies.epochs import leading_dim


@final
@dataclass(kw_only=True)
class _Steps:
    """The results of a closure's steps so far.

    Attributes:
        number: the number of the closure.
        num_steps: the number of its steps.
        num_pushed: the number of steps that the servers have answered.
        metrics: the changes of the metrics' variables in these steps, by dtype.
        num_rows: the number of rows in the batches of these steps.
        staleness: the sum of the staleness of these steps.
        is_applied: whether any server accepted a push of these steps in time, in this run of the closure or an earlier
            one.
        step: the servers' synchronous step. A server that was lost may be behind until the coordinator begins the next
            one.
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
        """Adds the results of the next step."""
        self.num_pushed += 1
        for dtype, array in computed.metrics.items():
            change = np.asarray(array)
            self.metrics[dtype] = self.metrics[dtype] + change if dtype in self.metrics else change
        self.num_rows += num_rows
        self.staleness += pulled.staleness
        self.is_applied |= any(state.is_applied or state.was_applied for state in pulled.states)
        self.step = max(state.step for state in pulled.states)

    def ended(self) -> list[Ended]:
        """Returns the result of the closure once all its steps have ended."""
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
        steps: the results of its closure.
        push: the header of its push.
        batch: its batch.
        wanted: the rows that it uses.
        pulled: the values with which it begins.
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
    """The batches of a closure. The next one can be prepared while there is nothing else to do.

    Args:
        numbers: the numbers of the batches, in order.
        prepare: a function that reads the batch with a number.
    """

    def __init__(self, numbers: Iterable[int], prepare: Callable[[int], _Prepared]) -> None:
        self._numbers = deque(numbers)
        self._prepare = prepare
        self._next: Future[_Prepared] | None = None

    def __len__(self) -> int:
        return len(self._numbers) + (self._next is not None)

    def prepare(self) -> None:
        """Prepares the next batch, if there is one. An error that this raises is raised by `take`."""
        if self._next is not None or not self._numbers:
            return
        self._next = Future()
        try:
            self._next.set_result(self._prepare(self._numbers.popleft()))
        except Exception as error:  # the script's own data may raise anything
            self._next.set_exception(error)

    def take(self) -> _Prepared:
        """Returns the next batch."""
        self.prepare()
        taken, self._next = self._next, None
        assert taken is not None, "there is one"
        return taken.result()


@final
class FitFunction(AbstractFunction):
    """Runs the training steps of a model.

    Args:
        cluster: the cluster with the servers.
        setup: what the servers keep.
        step: computes steps.
        batches: the batches of this worker.
        overlaps: whether a step begins with the available parameters while the previous push is still being sent.
        holds: whether a step's push waits for the next closure, so that the answer brings the rows of that closure.
    """

    def __init__(
        self, cluster: Cluster, *, setup: Setup, step: FitStep, batches: AbstractBatches, overlaps: bool, holds: bool
    ) -> None:
        self._mode = setup.mode
        self._step = step
        self._batches = batches
        self._overlaps = overlaps
        self._exchange = Exchange(cluster, setup, feedback=step.feedback)
        self._holds = holds
        self._steps: deque[_Step] = deque()
        self._lost: list[int] = []
        self._ended: list[Ended] = []  # reported by the next call that succeeds, or by `forget`

    @override
    def begin(self, call: Call) -> Sequence[Ended]:
        (options,) = call.args
        self._exchange.forget_outdated(num_writes=options["num_writes"], num_restores=options["num_restores"])
        seed, step = int(options["seed"]), int(options["round"])
        if self._mode is Mode.SYNCHRONOUS and not self._has_values_of(step):
            self._exchange.pulled = None
        upcoming = _Upcoming(map(int, call.chosen["batches"]), lambda number: self._prepare(number, seed=seed))
        steps = _Steps(number=call.number, num_steps=len(upcoming))
        for index in range(len(upcoming)):
            prepared = upcoming.take()
            push = Push(
                closure=call.number,
                number=index,
                step=step,
                num_rows=leading_dim(prepared[0]),
                watermark=call.watermark,
            )
            self._begin(steps, push, prepared, meanwhile=upcoming.prepare)
        return self._take_ended()

    def _has_values_of(self, step: int) -> bool:
        """Whether the pulled values are those with which a synchronous step begins.

        Other workers may have ended one or more steps since this worker's last push was answered.
        """
        pulled = self._exchange.pulled
        return pulled is not None and all(state.step == step for state in pulled.states)

    def _prepare(self, number: int, *, seed: int) -> _Prepared:
        batch = self._batches.batch(number, seed=seed)
        return batch, self._step.wanted(batch)

    def _begin(self, steps: _Steps, push: Push, prepared: _Prepared, *, meanwhile: Callable[[], None]) -> None:
        batch, wanted = prepared
        if len(self._steps) == (2 if self._overlaps else 1):
            pulled = self._push(self._steps.popleft(), wanted=wanted, meanwhile=meanwhile)
        elif (pulled := self._exchange.pulled) is None or self._steps or (self._overlaps and wanted.ids):
            pulled = self._exchange.pull(wanted.ids)  # the first values
        elif wanted.ids:
            pulled = replace(pulled, rows=self._exchange.pull_rows(wanted.ids))
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
        self._finish()
        return self._take_ended()

    def _finish(self) -> None:
        while self._steps:
            self._push(self._steps.popleft())

    def _take_ended(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    @property
    @override
    def awaits_servers(self) -> bool:
        return self._exchange.awaits_servers

    @override
    def under_way(self) -> Sequence[int]:
        return list(dict.fromkeys([*self._lost, *(step.push.closure for step in self._steps)]))

    @override
    def forget(self) -> Sequence[Ended]:
        for step in self._steps:
            if step.computed is not None:
                self._exchange.restore_residuals(step.computed.gradients)
        self._steps.clear()
        self._lost.clear()
        return self._take_ended()

    @override
    def recover(self, meanwhile: Callable[[], None]) -> None:
        self._exchange.recover(meanwhile)

    def close(self) -> None:
        """Closes the links to the servers. Idempotent."""
        self._exchange.close()

    def _push(
        self, step: _Step, *, wanted: Wanted | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> Pulled:
        """Pushes a step's gradients, and computes the step that is waiting; returns the values for another step."""
        self._lost.append(step.push.closure)
        computed = self._compute(step)

        def go_on() -> None:
            if self._steps:
                self._compute(self._steps[0])
            meanwhile()

        pulled = self._exchange.push(
            step.push,
            computed.gradients,
            of=step.pulled,
            wanted=None if wanted is None else wanted.ids,
            meanwhile=go_on,
        )
        self._lost.remove(step.push.closure)
        step.steps.add(computed, pulled, num_rows=step.push.num_rows)
        self._ended += step.steps.ended()
        return pulled
