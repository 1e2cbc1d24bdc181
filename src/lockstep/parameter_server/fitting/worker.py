"""A worker's part of ``fit``: a step for each closure, one exchange with the servers for each step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from typing_extensions import override

from lockstep.errors import UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.working import AbstractFunction, Call, Ended, GiveBackError
from lockstep.parameter_server.fitting.data import AbstractBatches
from lockstep.parameter_server.fitting.step import Computed, FitStep
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.protocol import Push, Setup
from lockstep.parameter_server.servers import Pulled, Servers
from lockstep.strategies.fitting import leading_dim

RETRY_S: Final = 0.2


@final
@dataclass(frozen=True, kw_only=True)
class _Pushed:
    number: int
    computed: Computed
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
    """

    def __init__(
        self, cluster: Cluster, *, setup: Setup, step: FitStep, batches: AbstractBatches, overlaps: bool
    ) -> None:
        self._cluster = cluster
        self._setup = setup
        self._step = step
        self._batches = batches
        self._overlaps = overlaps
        self._servers = join_servers(cluster, setup)
        self._pulled: Pulled | None = None
        self._pushed: _Pushed | None = None

    @override
    def begin(self, call: Call) -> Sequence[Ended]:
        (options,) = call.args
        batch = self._batches.batch(int(call.chosen["batch"]), seed=int(options["seed"]))
        try:
            if self._pulled is None:
                self._pulled = self._keep(self._servers.pull())
            used = self._pulled
            computed = self._step.run(used.dense, batch)
            ended = self._end_push()
            push = Push(closure=call.number, step=int(options["round"]), watermark=call.watermark)
            self._servers.begin_push(
                push,
                gradients=computed.to_host(),
                parts=computed.parts,
                versions=[state.version for state in used.states],
            )
            self._pushed = _Pushed(number=call.number, computed=computed, num_rows=leading_dim(batch))
            return [*ended, *(() if self._overlaps else self._end_push())]
        except UnavailableError as error:
            raise GiveBackError(str(error)) from error

    @override
    def finish(self) -> Sequence[Ended]:
        try:
            return self._end_push()
        except UnavailableError as error:
            raise GiveBackError(str(error)) from error

    @override
    def under_way(self) -> Sequence[int]:
        return [] if self._pushed is None else [self._pushed.number]

    @override
    def recover(self) -> None:
        self._servers.close()
        self._pushed = self._pulled = None
        self._servers = join_servers(self._cluster, self._setup)

    def close(self) -> None:
        """Hangs up. Idempotent."""
        self._servers.close()

    def _end_push(self) -> list[Ended]:
        pushed = self._pushed
        if pushed is None:
            return []
        self._pulled = self._keep(self._servers.end_push())
        self._pushed = None
        states = self._pulled.states
        value = {
            "metrics": {dtype: np.asarray(array) for dtype, array in pushed.computed.metrics.items()},
            "num_rows": pushed.num_rows,
            "staleness": self._pulled.staleness,
            "is_applied": any(state.is_applied for state in states),
            "step": min(state.step for state in states),
        }
        return [Ended(number=pushed.number, value=value)]

    def _keep(self, pulled: Pulled) -> Pulled:
        """Copies what a step may still read when the next exchange writes over it."""
        if not self._overlaps:
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
