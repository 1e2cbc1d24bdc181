"""A cluster of which the servers are threads of the test, and this process is its one worker, or its coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.chief import write_first_state
from lockstep.parameter_server.coordination.working import Call
from lockstep.parameter_server.fitting.worker import FitFunction
from lockstep.parameter_server.flattening import unflatten
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.links import Listener
from lockstep.parameter_server.model_setup import ServedModel
from lockstep.parameter_server.server.server import ParameterServer
from lockstep.strategies.devices import local_devices
from lockstep.strategies.runs import AbstractRuns
from lockstep.topology import Task, Topology
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

TOKEN = b"t" * 32
TIMEOUT_S = 30.0


class NoRuns(AbstractRuns):
    """Leaves Keras's methods alone."""

    def wrap_call(self, model: Any, method: str, arguments: dict[str, Any]) -> Any:
        raise AssertionError("not called here")

    def step_function(self, model: Any, kind: str) -> Callable[[Any, Any], Any] | None:
        return None


def make_layout() -> ServedLayout:
    replace(Stage.STRATEGY)  # as each strategy does
    layout = ServedLayout(local_devices()[:1], name="ParameterServerStrategy")
    layout.runs = NoRuns()
    return layout


@contextmanager
def served(num_servers: int, *, num_workers: int = 1) -> Iterator[Cluster]:
    """Serves until the block has ended."""
    listeners = [
        Listener("127.0.0.1:0", name=f"ps {index}", token=TOKEN, silence_s=5.0) for index in range(num_servers)
    ]
    servers = [ParameterServer(listener) for listener in listeners]
    threads = [threading.Thread(target=server.run, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    free = Listener("127.0.0.1:0", name="chief 0", token=TOKEN, silence_s=5.0)
    free.close()
    cluster = Cluster(
        topology=Topology(
            cluster={
                "chief": (free.address,),
                "worker": ("127.0.0.1:1",) * num_workers,
                "ps": tuple(listener.address for listener in listeners),
            },
            task=Task(role="worker"),
        ),
        token=TOKEN,
        silence_s=5.0,
        start_within_s=TIMEOUT_S,
    )
    try:
        yield cluster
    finally:
        ends = cluster.reach_servers()
        ends.finish()
        ends.close()
        for thread in threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        for listener in listeners:
            listener.close()


def write_values(cluster: Cluster, model: ServedModel) -> None:
    """Tells the servers what to keep, its first values, and that a synchronous step is one worker's."""
    servers = cluster.reach_servers()
    servers.set_up(model.setup)
    links = {server: cluster.reach_server(server) for server in range(cluster.num_servers)}
    write_first_state(links, model, first_closure=0)
    for link in links.values():
        link.close()
    servers.expect(1, step=0)
    servers.close()


def read_values(cluster: Cluster, model: ServedModel) -> dict[str, np.ndarray[Any, Any]]:
    """Returns what the servers have, by the variables' paths."""
    servers = cluster.reach_servers()
    values = unflatten(model.setup.placement, [dict(own) for own in servers.pull().dense])
    found = {variable.path: np.array(value) for variable, value in zip(model.variables, values, strict=True)}
    servers.close()
    return found


def run_steps(function: FitFunction, numbers: Sequence[int]) -> list[Any]:
    """Runs a closure for each batch, one after the other; returns what they returned."""
    ended: list[Any] = []
    for number in numbers:
        options = {"seed": 0, "round": number, "num_writes": 0, "num_restores": 0}
        call = Call(number=number, watermark=number, args=(options,), kwargs={}, chosen={"batches": [number]})
        ended += function.begin(call)
    return [one.value for one in (*ended, *function.finish())]
