"""A worker is lost, or has a successor: its closures are run by others, and who loses too many is given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.parameter_server.coordination.workers import TIMEOUT_S, TOKEN, Cluster
from tests.waiting import wait_until

from lockstep.parameter_server.coordination.remote_values import Closure, ClosureAbortedError, ClosureError, RemoteValue
from lockstep.parameter_server.coordination.working import (
    AbstractFunction,
    Call,
    Ended,
)
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.client import RemoteError


def test_of_two_processes_with_one_name_the_former_is_told_whenever_it_asks(cluster: Cluster) -> None:
    links = [
        Link(cluster.address, peer_name="chief 0", token=TOKEN, name="worker 0", silence_s=4.0, connect_s=TIMEOUT_S)
        for _ in range(2)
    ]
    former, successor = links
    former.request(Message(kind="ready"))
    value = cluster.schedule("one")
    assert former.request(Message(kind="next")).fields["number"] == 0
    successor.request(Message(kind="ready"))
    ended = {"ended": [{"closure": 0, "value": "of the former"}]}
    for kind, fields in (("next", ended), ("give back", {"closures": [0]}), ("check over", {}), ("next", {})):
        with pytest.raises(
            RemoteError, match=r"worker 0 was taken for lost, or has a successor.* one process for each"
        ):
            former.request(Message(kind=kind, fields=fields), timeout_s=TIMEOUT_S)
    assert not value.is_ended, "what it says does not count"
    assert successor.request(Message(kind="next")).fields["number"] == 0
    ended = {"ended": [{"closure": 0, "value": "of the successor"}], "may_wait": False}
    successor.request(Message(kind="next", fields=ended))
    assert value.fetch() == "of the successor"
    for link in links:
        link.close()


def test_what_is_chosen_for_a_worker_stays_with_the_closure(cluster: Cluster) -> None:
    chosen: list[str] = []
    seen: list[Any] = []

    class Seeing(AbstractFunction):
        awaits_servers = False  # type: ignore[assignment]
        forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

        def begin(self, call: Call) -> list[Ended]:
            seen.append(call.chosen)
            return [Ended(number=call.number, value=None)]

        finish = under_way = lambda self: []  # type: ignore[assignment]
        recover = lambda self: None  # type: ignore[assignment]  # noqa: E731

    first = Link(cluster.address, peer_name="chief 0", token=TOKEN, name="worker 0", silence_s=4.0, connect_s=TIMEOUT_S)
    first.request(Message(kind="ready"))

    def choose(worker: str) -> dict[str, Any]:
        chosen.append(worker)
        return {"batch": len(chosen)}

    value = cluster.dispatcher.schedule(Closure(function="see", arguments=["tuple", ["tuple"], {}], choose=choose))
    assert first.request(Message(kind="next")).fields["chosen"] == {"batch": 1}
    first.close()
    cluster.work("worker 1", see=Seeing())
    value.fetch()
    assert (chosen, seen) == (["worker 0"], [{"batch": 1}])


def test_a_lost_workers_choice_is_not_taken_back_with_what_nobody_has_begun(cluster: Cluster) -> None:
    batches = iter(range(3))
    ended: list[int] = []

    def schedule() -> RemoteValue:
        arguments = ["tuple", ["tuple"], {}]
        return cluster.dispatcher.schedule(
            Closure(function="see", arguments=arguments, choose=lambda _: {"batch": next(batches)})
        )

    class Seeing(AbstractFunction):
        awaits_servers = False  # type: ignore[assignment]
        forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

        def begin(self, call: Call) -> list[Ended]:
            ended.append(call.chosen["batch"])
            return [Ended(number=call.number, value=None)]

        finish = under_way = lambda self: []  # type: ignore[assignment]
        recover = lambda self: None  # type: ignore[assignment]  # noqa: E731

    values = [schedule() for _ in range(3)]
    first = Link(cluster.address, peer_name="chief 0", token=TOKEN, name="worker 0", silence_s=4.0, connect_s=TIMEOUT_S)
    first.request(Message(kind="ready"))
    assert first.request(Message(kind="next")).fields["chosen"] == {"batch": 0}
    first.close()
    wait_until(lambda: not cluster.dispatcher.workers)
    assert cluster.dispatcher.cancel_waiting(keeps_begun=True) == 2
    assert [value.is_ended for value in values] == [False, True, True]
    values += [schedule() for _ in range(2)]
    cluster.work("worker 1", see=Seeing())
    cluster.dispatcher.join()
    assert sorted(ended) == [0, 1, 2], "each was chosen once, and run once"


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from lockstep.parameter_server.links import Link
from lockstep.parameter_server.coordination.working import AbstractFunction, Ended, Worker
address, name, folder = sys.argv[1:]
link = Link(address, peer_name="chief 0", token=b"t" * 32, name=name, silence_s=4.0, connect_s=30)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def note(number):
    with Path(folder, name).open("a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.01)
    return number
class Plain(AbstractFunction):
    awaits_servers = False  # type: ignore[assignment]
    forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

    def __init__(self, function):
        self.function = function
    def begin(self, call):
        return [Ended(number=call.number, value=self.function(*call.args))]
    def finish(self):
        return []
    def under_way(self):
        return []
    def recover(self, meanwhile):
        pass
Worker(link, functions={"note": Plain(note), "die": Plain(die)}, resolve=tuple).run()
print("over", flush=True)
"""


def start(address: str, name: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, address, name, str(folder)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.heavy)],
)
def test_a_lost_workers_closures_are_run_by_another_and_its_successor_joins(
    cluster: Cluster, tmp_path: Path, how: signal.Signals
) -> None:
    processes = [start(cluster.address, f"worker {number}", tmp_path) for number in range(2)]
    values = [cluster.schedule("note", number) for number in range(300)]
    wait_until(lambda: (tmp_path / "worker 1").exists())
    processes[1].send_signal(how)
    wait_until(lambda: cluster.dispatcher.workers == ["worker 0"])
    successor = start(cluster.address, "worker 1", tmp_path)
    wait_until(lambda: len(cluster.dispatcher.workers) == 2)  # one that comes once it has ended finds nobody
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


def test_a_closure_that_kills_its_workers_fails_as_one_that_raises(tmp_path: Path) -> None:
    cluster = Cluster(max_losses=1)
    value, other = cluster.schedule("die"), cluster.schedule("die")
    for number in range(2):
        assert not value.is_ended
        start(cluster.address, f"worker {number}", tmp_path).communicate(timeout=TIMEOUT_S)
    words = r"closure 0 \(die\) was given up: 2 workers were lost with it; look into their logs"
    with pytest.raises(ClosureError, match=words):
        value.fetch()
    with pytest.raises(ClosureAbortedError, match=f"closure 1 was cancelled: {words}"):
        other.fetch()
    with pytest.raises(ClosureError, match=words):
        cluster.dispatcher.join()
    assert cluster.dispatcher.done(), "it is raised once"
    cluster.close()


@pytest.mark.parametrize("ask", ["done", "schedule"])
def test_whoever_does_not_join_hears_of_what_was_given_up_too(ask: str) -> None:
    cluster = Cluster(max_losses=0)
    value = cluster.schedule("one")
    link = Link(cluster.address, peer_name="chief 0", token=TOKEN, name="worker 0", silence_s=4.0, connect_s=TIMEOUT_S)
    link.request(Message(kind="ready"))
    assert link.request(Message(kind="next")).kind == "closure"
    link.close()
    wait_until(lambda: value.is_ended)
    with pytest.raises(ClosureError, match="was given up: 1 worker was lost with it"):
        cluster.dispatcher.done() if ask == "done" else cluster.schedule("one")
    cluster.close()


def test_a_closure_that_an_error_of_another_ends_is_not_said_to_have_lost_its_workers(cluster: Cluster) -> None:
    links = [
        Link(
            cluster.address,
            peer_name="chief 0",
            token=TOKEN,
            name=f"worker {number}",
            silence_s=4.0,
            connect_s=TIMEOUT_S,
        )
        for number in range(2)
    ]
    values = [cluster.schedule("one") for _ in links]
    for link in links:
        link.request(Message(kind="ready"))
        assert link.request(Message(kind="next")).kind == "closure"
    links[0].request(Message(kind="give back", fields={"ended": [{"closure": 0, "error": "ValueError: no such luck"}]}))
    links[1].close()
    with pytest.raises(ClosureAbortedError, match=r"closure 1 was cancelled: closure 0 \(one\) failed in worker 0"):
        values[1].fetch()
    with pytest.raises(ClosureError, match="no such luck"):
        cluster.dispatcher.join()
    links[0].close()
