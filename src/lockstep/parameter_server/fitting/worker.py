"""A worker's part of ``fit``: a step for each closure, one exchange with the servers for each step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from typing_extensions import override

from lockstep.errors import UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.working import AbstractFunction, Call, Ended, GiveBackError
from lockstep.parameter_server.embedding.lookups import Wanted
from lockstep.parameter_server.fitting.data import AbstractBatches
from lockstep.parameter_server.fitting.step import Computed, FitStep
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.protocol import Push, Setup
from lockstep.parameter_server.servers import Pulled, Servers
from lockstep.strategies.fitting import leading_dim

RETRY_S: Final = 0.2


@final
@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step that has begun, and has not been pushed.

    Attributes:
        push: what it will be pushed as.
        computed: its gradients.
        versions: the servers' when its values were pulled.
        ids: of the rows that it uses, by table.
        num_rows: of its batch.
    """

    push: Push
    computed: Computed
    versions: list[int]
    ids: dict[str, np.ndarray[Any, Any]]
    num_rows: int


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
        self._batches = batches
        self._overlaps = overlaps
        self._servers = join_servers(cluster, setup)
        self._pulled: Pulled | None = None
        self._num_writes = 0
        self._holds = holds
        self._steps: deque[_Step] = deque()
        self._lost: list[int] = []

    @override
    def begin(self, call: Call) -> Sequence[Ended]:
        (options,) = call.args
        if options["num_writes"] != self._num_writes:  # the coordinator has set the values anew
            self._num_writes = options["num_writes"]
            self._pulled = None
        batch = self._batches.batch(int(call.chosen["batch"]), seed=int(options["seed"]))
        wanted = self._step.wanted(batch)
        try:
            return self._begin(call, batch, wanted, step=int(options["round"]))
        except UnavailableError as error:
            raise GiveBackError(str(error)) from error

    def _begin(self, call: Call, batch: Any, wanted: Wanted, *, step: int) -> list[Ended]:
        ended: list[Ended] = []
        if len(self._steps) == (2 if self._overlaps else 1):
            ended.append(self._push(self._steps.popleft(), wanted=wanted))
            pulled = self._pulled
        elif self._pulled is None or self._steps:  # the first ones
            pulled = self._pulled = self._keep(self._servers.pull(wanted=wanted.ids))
        else:
            pulled = self._pulled
            if wanted.ids:
                rows = self._servers.pull(wanted=wanted.ids, is_answered_by_values=False).rows
                pulled = replace(pulled, rows=rows)
        assert pulled is not None, "it was pulled"
        for before in self._steps:
            before.computed.to_host()  # one step at a time is computed
        computed = self._step.run(pulled.dense, batch, wanted=wanted, rows=pulled.rows)
        versions = [state.version for state in pulled.states]
        push = Push(closure=call.number, step=step, watermark=call.watermark)
        self._steps.append(
            _Step(push=push, computed=computed, versions=versions, ids=wanted.ids, num_rows=leading_dim(batch))
        )
        if not self._holds:
            ended += self._finish()
        return ended

    @override
    def finish(self) -> Sequence[Ended]:
        try:
            return self._finish()
        except UnavailableError as error:
            raise GiveBackError(str(error)) from error

    def _finish(self) -> list[Ended]:
        return [self._push(self._steps.popleft()) for _ in range(len(self._steps))]

    @override
    def under_way(self) -> Sequence[int]:
        return [*self._lost, *(step.push.closure for step in self._steps)]

    @override
    def recover(self) -> None:
        self._servers.close()
        for step in self._steps:
            self._step.take_back(step.computed, servers=range(self._servers.num_servers))
        self._steps.clear()
        self._lost.clear()
        self._pulled = None
        self._servers = join_servers(self._cluster, self._setup)

    def close(self) -> None:
        """Hangs up. Idempotent."""
        self._servers.close()

    def _push(self, step: _Step, *, wanted: Wanted | None = None) -> Ended:
        """Pushes a step's gradients, and pulls what the next one begins with."""
        self._lost.append(step.push.closure)
        rows = {
            name: (step.ids[name], np.asarray(changes)[: len(step.ids[name])])
            for name, changes in step.computed.rows.items()
        }
        self._servers.begin_push(
            step.push,
            gradients=step.computed.to_host(),
            parts=step.computed.parts,
            versions=step.versions,
            rows=rows,
            wanted={} if wanted is None else wanted.ids,
        )
        self._pulled = self._keep(self._servers.end_push())
        self._lost.remove(step.push.closure)
        states = self._pulled.states
        refused = [server for server, state in enumerate(states) if not state.is_applied]
        self._step.take_back(step.computed, servers=refused)
        value = {
            "metrics": {dtype: np.asarray(array) for dtype, array in step.computed.metrics.items()},
            "num_rows": step.num_rows,
            "staleness": self._pulled.staleness,
            "is_applied": any(state.is_applied for state in states),
            "step": min(state.step for state in states),
        }
        return Ended(number=step.push.closure, value=value)

    def _keep(self, pulled: Pulled) -> Pulled:
        """Copies what a step reads when the next exchange may have written over it."""
        if not self._overlaps and not self._setup.tables:
            return pulled
        dense = tuple({dtype: np.array(array) for dtype, array in own.items()} for own in pulled.dense)
        return replace(pulled, dense=dense)


def join_servers(cluster: Cluster, setup: Setup) -> Servers:
    """Connects to the servers, and shows them that this process runs the same model.

    A server that has just been started waits for the coordinator to tell it what it keeps.

    Raises:
        RemoteError: this process runs another model.
        UnavailableError: a server is not there in time.
    """
    deadline = time.monotonic() + cluster.start_within_s
    while True:
        servers: Servers | None = None
        try:
            servers = cluster.reach_servers()
            servers.join(setup)
        except (RemoteError, UnavailableError) as error:
            if servers is not None:
                servers.close()
            has_time = time.monotonic() < deadline
            if not has_time or (isinstance(error, RemoteError) and error.error != "WrongStateError"):
                raise
            time.sleep(RETRY_S)
        except BaseException:
            if servers is not None:
                servers.close()
            raise
        else:
            return servers
