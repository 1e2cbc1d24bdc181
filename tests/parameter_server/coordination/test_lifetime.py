"""When a worker's life ends, and for which reason."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.parameter_server.threads import TIMEOUT_S, TOKEN
from tests.waiting import wait_until

from lockstep.errors import UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.coordination.lifetime import work_until_the_end
from lockstep.parameter_server.coordination.remote_values import Closure
from lockstep.parameter_server.coordination.working import AbstractFunction, Call, Ended, GiveBackError, pack_call
from lockstep.parameter_server.links import Listener, Message
from lockstep.parameter_server.links.client import RemoteError
from lockstep.topology import Task, Topology


class WithoutServers(AbstractFunction):
    """Finds no server, and none that comes back."""

    awaits_servers = False  # type: ignore[assignment]
    forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

    def begin(self, call: Call) -> list[Ended]:
        raise GiveBackError("worker 0 cannot reach ps 1 at 127.0.0.1:1: it has gone")

    def finish(self) -> list[Ended]:
        return []

    def under_way(self) -> list[int]:
        return []

    def recover(self, meanwhile: Callable[[], None]) -> None:
        raise UnavailableError("worker 0 cannot reach ps 1 at 127.0.0.1:1: no answer within 600 s")


@contextmanager
def open_functions() -> Generator[tuple[Mapping[str, AbstractFunction], Callable[[list[Any]], Any]]]:
    yield {"step": WithoutServers()}, tuple


@pytest.fixture
def coordinator() -> Iterator[tuple[Dispatcher, Cluster]]:
    listener = Listener("127.0.0.1:0", name="chief 0", token=TOKEN, silence_s=4.0)
    topology = Topology(
        cluster={"chief": (listener.address,), "worker": ("127.0.0.1:1",), "ps": ("127.0.0.1:2",)},
        task=Task(role="worker"),
    )
    made = Dispatcher(listener)
    yield made, Cluster(topology=topology, token=TOKEN, silence_s=4.0, start_within_s=TIMEOUT_S)
    made.close()


class Life:
    """A worker's, in a thread; how it ended."""

    def __init__(self, cluster: Cluster, *, stage: int = 0) -> None:
        self.end: BaseException | None = None
        self.left: Message | None = None
        self._cluster, self._stage = cluster, stage
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def _live(self) -> None:
        try:
            self.left = work_until_the_end(self._cluster, open_functions, stage=self._stage)
        except BaseException as end:
            self.end = end


def test_a_worker_in_whose_place_another_one_has_come_ends_and_says_so(
    coordinator: tuple[Dispatcher, Cluster],
) -> None:
    dispatcher, cluster = coordinator
    former = Life(cluster)
    wait_until(lambda: dispatcher._idle)  # it waits for a closure
    with contextlib.closing(cluster.reach_chief()) as successor:
        successor.request(Message(kind="ready"))
        former.thread.join(TIMEOUT_S)
        assert isinstance(former.end, RemoteError)
        assert former.end.error == "ReplacedError"
        assert "worker 0 was taken for lost, or has a successor: another process that says it is worker 0" in str(
            former.end
        )
        assert dispatcher.workers == ["worker 0"]
        assert successor.request(Message(kind="check over")).kind == "ok", "the later one is the worker"


def test_a_server_that_does_not_come_back_is_not_taken_for_the_coordinator(
    coordinator: tuple[Dispatcher, Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, cluster = coordinator
    arguments, arrays = pack_call((), {})
    dispatcher.schedule(Closure(function="step", arguments=arguments, arrays=arrays))
    life = Life(cluster)
    life.thread.join(TIMEOUT_S)
    assert isinstance(life.end, UnavailableError)
    assert "cannot reach ps 1 at 127.0.0.1:1: no answer" in str(life.end)
    assert "lost the coordinator" not in caplog.text


def test_a_worker_goes_on_where_the_coordinator_does(coordinator: tuple[Dispatcher, Cluster]) -> None:
    dispatcher, cluster = coordinator
    waiting = Life(cluster)
    wait_until(lambda: dispatcher._idle)
    left = Message(kind="go on", fields={"histories": [1]}, arrays={"0": np.ones(2)})
    dispatcher.close(left)
    waiting.thread.join(TIMEOUT_S)
    address = cluster.topology.cluster["chief"][0]
    following = Dispatcher(Listener(address, name="chief 0", token=TOKEN, silence_s=4.0), stage=1, stage_results=left)
    with contextlib.closing(following):
        late = Life(cluster)  # one that is started again, and is at the beginning of its script
        late.thread.join(TIMEOUT_S)
        for life in (waiting, late):
            assert life.left is not None, life.end
            assert life.left.fields["histories"] == [1]
            np.testing.assert_array_equal(life.left.arrays["0"], np.ones(2))
        ahead = Life(cluster, stage=1)
        wait_until(lambda: following._idle)
    ahead.thread.join(TIMEOUT_S)
    assert isinstance(ahead.end, SystemExit)


def test_a_worker_that_has_gone_on_takes_no_part_in_what_its_coordinator_begins_again(
    coordinator: tuple[Dispatcher, Cluster],
) -> None:
    life = Life(coordinator[1], stage=1)
    life.thread.join(TIMEOUT_S)
    assert isinstance(life.end, RemoteError)
    assert "worker 0 is at the closures of its script, and the coordinator is at fit again" in str(life.end)
