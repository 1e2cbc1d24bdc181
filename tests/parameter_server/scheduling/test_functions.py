"""Closures as one worker runs them: what they pull, what they push, and what becomes of them without their server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.threads import TIMEOUT_S, TOKEN, make_layout, write_values

from lockstep.errors import UnavailableError
from lockstep.parameter_server import TopK
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.compression import Compression
from lockstep.parameter_server.coordination.working import Call, GiveBackError
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.links import Listener
from lockstep.parameter_server.model_setup import ServedModel, describe_model
from lockstep.parameter_server.protocol import Mode
from lockstep.parameter_server.scheduling.functions import ClosureRunner
from lockstep.parameter_server.server.server import ParameterServer
from lockstep.topology import Task, Topology

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


class Server:
    """One in a thread of the test."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.listener = Listener(address, name="ps 0", token=TOKEN, silence_s=5.0)
        self.server = ParameterServer(self.listener)
        self._is_lost = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_lost.is_set():
            self.server.step(timeout_s=0.05)
        self.listener.close()

    def lose(self) -> None:
        self._is_lost.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


@dataclass(frozen=True)
class Worker:
    cluster: Cluster
    served: ServedModel
    layout: ServedLayout
    runner: ClosureRunner
    number: Any
    weight: Any
    optimizer: Any

    def run(self, function: Any, *args: Any, closure: int, writes: int = 0, restores: int = 0, version: int = 0) -> Any:
        needed = {"writes": writes, "restores": restores, "versions": [version]}
        call = Call(number=closure, watermark=closure, args=(needed, args, {}), kwargs={}, chosen={})
        return self.runner.run(function, call)

    def add(self, amount: float) -> Any:
        self.number.assign_add(amount)
        return self.number.value

    def apply(self, gradient: float) -> None:
        self.optimizer.apply([np.full(2, gradient, np.float32)], [self.weight])


@contextmanager
def working(server: Server, *, compression: Compression | None = None) -> Iterator[Worker]:
    cluster = Cluster(
        topology=Topology(
            cluster={"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",), "ps": (server.listener.address,)},
            task=Task(role="worker"),
        ),
        token=TOKEN,
        silence_s=5.0,
        start_within_s=TIMEOUT_S,
    )
    layout = make_layout()
    with layout.scope():
        number = keras.Variable(np.float32(0), trainable=False)
        weight = keras.Variable(np.zeros(2, np.float32))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])
    served = describe_model(
        [number, weight], optimizers=[optimizer], num_servers=1, partitioner=None, mode=Mode.ASYNCHRONOUS
    )
    write_values(cluster, served)
    runner = ClosureRunner(cluster, served, layout=layout, scope=layout.scope, compression=compression)
    try:
        yield Worker(cluster, served, layout, runner, number, weight, optimizer)
    finally:
        runner.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.lose()


def test_a_closure_is_one_push_and_pulls_only_what_its_last_answer_has_not(server: Server) -> None:
    with working(server) as worker:
        found = [float(worker.run(worker.add, 1, closure=n, version=n)["value"]) for n in range(3)]
        assert found == [1, 2, 3]
        assert worker.run(worker.add, 1, closure=3, version=3)["versions"] == [4]
        assert server.server.num_requests["pull"] == 1
        assert server.server.num_requests["push"] == 4
        worker.run(lambda: None, closure=4, version=4)
        assert server.server.num_requests["push"] == 4, "what has changed nothing pushes nothing"
        worker.run(worker.add, 0, closure=5, version=7)
        assert server.server.num_requests["pull"] == 2, "another worker has pushed what this one has to see"
        worker.run(worker.add, 0, closure=6, version=4, writes=1)
        assert server.server.num_requests["pull"] == 3, "the coordinator has written"


def test_a_closure_that_runs_again_counts_once(server: Server) -> None:
    with working(server) as worker:
        for _ in range(2):
            assert float(worker.run(worker.add, 1, closure=0)["value"]) >= 1
            worker.run(worker.apply, 2, closure=1)
        assert float(worker.run(lambda: worker.number.value, closure=2)["value"]) == 1
        assert worker.run(lambda: worker.weight.value, closure=3)["value"].tolist() == [-2, -2]


def test_what_a_closures_push_leaves_out_goes_along_later_and_comes_back_where_it_did_not_count(
    server: Server,
) -> None:
    def give(first: float, second: float) -> None:
        worker.add(1 + 2.0**-12)  # what no optimizer takes travels whole
        worker.optimizer.apply([np.array([first, second], np.float32)], [worker.weight])

    with working(server, compression=TopK(0.4)) as worker:  # of two gradients, the larger one
        found: list[list[float]] = []
        for closure, gradient in [(0, (1, -5)), (1, (2, 0)), (2, (4, 1)), (2, (9, 3)), (3, (0, 1))]:
            worker.run(give, *gradient, closure=closure)
            found.append(worker.run(lambda: worker.weight.value, closure=4 + len(found))["value"].tolist())
        assert found == [[0, 5], [-3, 5], [-7, 5], [-7, 5], [-7, 3]], "closure 2 ran twice, and counts once"
        assert float(worker.run(lambda: worker.number.value, closure=9)["value"]) == 4 * (1 + 2.0**-12)


def test_what_was_pushed_to_a_lost_server_leaves_what_it_was_before(server: Server) -> None:
    def give(first: float, second: float, *, is_late: bool = False) -> None:
        if is_late:
            server.lose()
        worker.optimizer.apply([np.array([first, second], np.float32)], [worker.weight])

    with working(server, compression=TopK(0.4)) as worker:
        worker.run(give, 4, 1, closure=0)
        with pytest.raises(GiveBackError):
            worker.run(lambda: give(2, 0.5, is_late=True), closure=1)
        successor = Server(server.listener.address)
        try:
            write_values(worker.cluster, worker.served)  # what they were after the first one
            worker.runner.exchange.recover(lambda: None)
            worker.run(give, 2, 0.5, closure=1)
            worker.run(give, 0, 0.5, closure=2)
            found = worker.run(lambda: worker.weight.value, closure=3)["value"].tolist()
            assert found == [-6, -2], "of the second ones 1, 0.5 and 0.5: closure 1 is in it once"
        finally:
            successor.lose()


def test_what_is_left_of_pushes_is_not_of_a_state_that_was_restored(server: Server) -> None:
    def give(first: float, second: float) -> None:
        worker.optimizer.apply([np.array([first, second], np.float32)], [worker.weight])

    with working(server, compression=TopK(0.4)) as worker:
        worker.run(give, 4, 1, closure=0)
        worker.run(give, 0, 1, closure=1, restores=1)
        assert worker.run(lambda: worker.weight.value, closure=2, restores=1)["value"].tolist() == [-4, -1]


def test_a_closure_that_raises_has_pushed_nothing(server: Server) -> None:
    def fail() -> None:
        worker.add(5)
        worker.apply(5)
        raise ValueError("no such luck")

    with working(server) as worker:
        with pytest.raises(ValueError, match="no such luck"):
            worker.run(fail, closure=0)
        assert "push" not in server.server.num_requests
        assert float(worker.run(worker.add, 1, closure=1)["value"]) == 1


def test_without_its_server_a_closure_is_given_back_and_runs_when_there_is_one_again(server: Server) -> None:
    with working(server) as worker:
        worker.run(worker.add, 1, closure=0)

        def add_late() -> Any:
            server.lose()
            return worker.add(1)

        with pytest.raises(GiveBackError):
            worker.run(add_late, closure=1)
        successor = Server(server.listener.address)
        try:
            recovering = threading.Thread(target=worker.runner.exchange.recover, args=(lambda: None,))
            recovering.start()
            write_values(worker.cluster, worker.served)  # as the coordinator does: before that it waits
            recovering.join(TIMEOUT_S)
            assert not recovering.is_alive()
            worker.run(worker.add, 1, closure=1)
            assert successor.server.num_requests["push"] == 1
        finally:
            successor.lose()
        short = replace(worker.cluster, start_within_s=0.5)
        with pytest.raises(UnavailableError):
            ClosureRunner(short, worker.served, layout=worker.layout, scope=worker.layout.scope)
