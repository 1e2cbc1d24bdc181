"""Closures run in workers, at least once each, whoever is lost; their errors come to whoever joins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.errors import UnavailableError
from lockstep.parameter_server.coordination.dispatching import (
    Closure,
    ClosureAbortedError,
    ClosureError,
    Dispatcher,
    RemoteValue,
)
from lockstep.parameter_server.coordination.working import Worker, pack_call
from lockstep.parameter_server.links import Link, Listener, Message
from lockstep.parameter_server.links.client import RemoteError

TOKEN = b"t" * 32
TIMEOUT_S = 30.0


class Cluster:
    """A dispatcher, and workers in threads."""

    def __init__(self, **options: Any) -> None:
        listener = Listener("127.0.0.1:0", token=TOKEN, silence_s=4.0)
        self.address = listener.address
        self.dispatcher = Dispatcher(listener, **options)
        self.threads: list[threading.Thread] = []
        self.links: list[Link] = []
        self.errors: list[Exception] = []
        self.ran: list[tuple[str, int]] = []

    def work(self, name: str, **functions: Callable[..., Any]) -> Link:
        link = Link(self.address, token=TOKEN, name=name, silence_s=4.0, connect_s=TIMEOUT_S)
        self.links.append(link)

        def run() -> None:
            worker = Worker(
                link, functions=functions, resolve=tuple, on_closure=lambda number, _: self.ran.append((name, number))
            )
            try:
                worker.run()
            except UnavailableError as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)
        return link

    def schedule(self, function: str, *args: Any, **kwargs: Any) -> RemoteValue:
        arguments, arrays = pack_call(args, kwargs)
        return self.dispatcher.schedule(Closure(function=function, arguments=arguments, arrays=arrays))

    def close(self) -> None:
        self.dispatcher.close()
        for thread in self.threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        for link in self.links:
            link.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closures_run_in_workers_and_their_values_come_back(cluster: Cluster) -> None:
    for name in ("worker 0", "worker 1"):
        cluster.work(name, add=lambda a, b=0: {"sum": a + b})
    values = [cluster.schedule("add", np.full(3, number), b=1) for number in range(40)]
    cluster.dispatcher.join()
    assert cluster.dispatcher.done()
    for number, value in enumerate(values):
        assert value.is_ended
        np.testing.assert_array_equal(value.fetch()["sum"], np.full(3, number + 1))
    assert sorted(number for _, number in cluster.ran) == list(range(40))
    assert {name for name, _ in cluster.ran} == {"worker 0", "worker 1"}


def test_closures_wait_for_a_worker_to_come(cluster: Cluster) -> None:
    value = cluster.schedule("one")
    assert not cluster.dispatcher.done()
    cluster.work("worker 0", one=lambda: 1)
    assert value.get() == 1


def test_an_error_comes_to_whoever_joins_and_cancels_what_waits(cluster: Cluster) -> None:
    go = threading.Event()

    def fail() -> None:
        go.wait(TIMEOUT_S)
        raise ValueError("no such luck")

    failing = cluster.schedule("fail")
    waiting = cluster.schedule("one")
    cluster.work("worker 0", fail=fail, one=lambda: 1)
    go.set()
    with pytest.raises(
        ClosureError, match=r"closure 0 \(fail\) failed in worker 0: ValueError: no such luck"
    ) as caught:
        cluster.dispatcher.join()
    assert "in fail" in caught.value.__notes__[0], "the worker's stack"
    with pytest.raises(ClosureError):
        failing.fetch()
    with pytest.raises(ClosureAbortedError, match="closure 1 was cancelled: closure 0"):
        waiting.fetch()
    assert cluster.schedule("one").fetch() == 1, "it goes on after that"


def test_a_function_that_the_worker_does_not_know_is_said(cluster: Cluster) -> None:
    cluster.work("worker 0", one=lambda: 1)
    with pytest.raises(ClosureError, match=r"has not defined; received 'two'; allowed: one; define it before"):
        cluster.schedule("two").fetch()


def test_what_a_closure_returns_has_to_travel(cluster: Cluster) -> None:
    cluster.work("worker 0", make=object)
    with pytest.raises(ClosureError, match="what make returns has something that cannot travel"):
        cluster.schedule("make").fetch()


def test_a_value_that_cannot_be_read_is_not_taken_for_an_end(cluster: Cluster) -> None:
    value = cluster.schedule("one")
    broken = Link(cluster.address, token=TOKEN, name="worker 0", silence_s=4.0, connect_s=TIMEOUT_S)
    broken.request(Message(kind="ready"))
    assert broken.request(Message(kind="next")).fields["number"] == 0
    with pytest.raises(RemoteError, match="a value that cannot be read"):
        broken.request(Message(kind="next", fields={"closure": 0, "value": ["code", "x"]}))
    broken.close()
    cluster.work("worker 1", one=lambda: 1)
    wait_until(lambda: value.is_ended)
    assert value.fetch() == 1


def test_without_any_worker_it_does_not_wait_for_ever() -> None:
    cluster = Cluster(wait_for_workers_s=0.3)
    value = cluster.schedule("one")
    with pytest.raises(UnavailableError, match=r"no worker has come to 127.0.0.1:\d+ for \d+ s; start the workers"):
        cluster.dispatcher.join()
    with pytest.raises(UnavailableError):
        value.fetch()
    cluster.close()


def test_what_has_not_ended_is_aborted_by_the_end() -> None:
    cluster = Cluster()
    value = cluster.schedule("one")
    cluster.close()
    with pytest.raises(UnavailableError, match="the coordinator was closed"):
        value.fetch()


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from lockstep.parameter_server.links import Link
from lockstep.parameter_server.coordination.working import Worker
address, name, folder = sys.argv[1:]
link = Link(address, token=b"t" * 32, name=name, silence_s=4.0, connect_s=30)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def note(number):
    with Path(folder, name).open("a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.01)
    return number
Worker(link, functions={"note": note, "die": die}, resolve=tuple).run()
print("over", flush=True)
"""


def start(address: str, name: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, address, name, str(folder)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_workers_closures_are_run_by_another_and_its_successor_joins(
    cluster: Cluster, tmp_path: Path, how: signal.Signals
) -> None:
    processes = [start(cluster.address, f"worker {number}", tmp_path) for number in range(2)]
    values = [cluster.schedule("note", number) for number in range(300)]
    wait_until(lambda: (tmp_path / "worker 1").exists())
    processes[1].send_signal(how)
    wait_until(lambda: cluster.dispatcher.workers == ["worker 0"])
    successor = start(cluster.address, "worker 1", tmp_path)
    values += [cluster.schedule("note", number) for number in range(300, 600)]
    cluster.dispatcher.join()
    assert [value.fetch() for value in values] == list(range(600))
    ran = [int(line) for name in ("worker 0", "worker 1") for line in (tmp_path / name).read_text().split()]
    assert set(ran) == set(range(600))
    assert len(ran) <= 601, "one of them twice at the most: the one that was lost"
    cluster.dispatcher.close()
    assert processes[0].communicate(timeout=TIMEOUT_S)[0] == "over\n"
    assert successor.communicate(timeout=TIMEOUT_S)[0] == "over\n"
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].communicate(timeout=TIMEOUT_S)


def test_a_closure_that_kills_its_workers_is_given_up(tmp_path: Path) -> None:
    cluster = Cluster(max_losses=1)
    value = cluster.schedule("die")
    for number in range(2):
        assert not value.is_ended
        start(cluster.address, f"worker {number}", tmp_path).communicate(timeout=TIMEOUT_S)
    with pytest.raises(ClosureAbortedError, match=r"closure 0 \(die\) was given up: each worker that ran it was lost"):
        value.fetch()
    cluster.close()
