"""Closures run in workers, at least once each, whoever is lost; their errors come to whoever joins."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.parameter_server.coordination.workers import TIMEOUT_S, TOKEN, Cluster
from tests.waiting import wait_until

from lockstep.errors import UnavailableError
from lockstep.parameter_server.coordination.remote_values import Closure, ClosureAbortedError, ClosureError, RemoteValue
from lockstep.parameter_server.coordination.working import (
    AbstractFunction,
    Call,
    Ended,
    GiveBackError,
)
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.client import RemoteError


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


def test_of_closures_that_are_scheduled_together_none_begins_before_all_are_there(cluster: Cluster) -> None:
    began = threading.Event()
    cluster.work("worker 0", begin=began.set)
    wait_until(lambda: cluster.dispatcher.workers)
    with cluster.dispatcher.together():
        values = [cluster.schedule("begin")]
        assert not began.wait(0.3), "though a worker has nothing to do"
        values.append(cluster.schedule("begin"))
    cluster.dispatcher.join()
    assert began.is_set()
    assert all(value.is_ended for value in values)


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
    with pytest.raises(ClosureError, match="what make returns has something that cannot be sent"):
        cluster.schedule("make").fetch()


def test_a_value_that_cannot_be_read_is_not_taken_for_an_end(cluster: Cluster) -> None:
    value = cluster.schedule("one")
    broken = Link(
        cluster.address, peer_name="chief 0", token=TOKEN, name="worker 0", silence_s=4.0, connect_s=TIMEOUT_S
    )
    broken.request(Message(kind="ready"))
    assert broken.request(Message(kind="next")).fields["number"] == 0
    with pytest.raises(RemoteError, match="a value that cannot be read"):
        broken.request(Message(kind="next", fields={"ended": [{"closure": 0, "value": ["code", "x"]}]}))
    broken.close()
    cluster.work("worker 1", one=lambda: 1)
    wait_until(lambda: value.is_ended)
    assert value.fetch() == 1


def test_without_any_worker_it_does_not_wait_for_ever() -> None:
    cluster = Cluster(wait_for_workers_s=0.3)
    value = cluster.schedule("one")
    with pytest.raises(
        UnavailableError, match=r"no worker has connected to 127.0.0.1:\d+ for \d+ s; start the workers"
    ):
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


class Late(AbstractFunction):
    """Ends a closure when the next one has begun; cannot run any where something is out of reach."""

    awaits_servers = False  # type: ignore[assignment]
    forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.is_reachable = True
        self.is_recovering = threading.Event()
        self.may_recover = threading.Event()

    def begin(self, call: Call) -> list[Ended]:
        self.begun.append(call.number)
        return self._end(leave=1)

    def finish(self) -> list[Ended]:
        return self._end(leave=0)

    def under_way(self) -> list[int]:
        return list(self.begun)

    def recover(self, meanwhile: Callable[[], None]) -> None:
        self.is_recovering.set()
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self.may_recover.wait(0.01):
            meanwhile()
            assert time.monotonic() < deadline_s
        self.begun.clear()
        self.is_reachable = True

    def _end(self, *, leave: int) -> list[Ended]:
        if not self.is_reachable:
            raise GiveBackError("out of reach")
        count = max(0, len(self.begun) - leave)
        ended, self.begun = self.begun[:count], self.begun[count:]
        return [Ended(number=number, value=number) for number in ended]


def test_a_closure_may_end_when_the_next_one_has_begun(cluster: Cluster) -> None:
    function = Late()
    cluster.work("worker 0", late=function)
    values = [cluster.schedule("late") for _ in range(5)]
    cluster.dispatcher.join()
    assert [value.fetch() for value in values] == list(range(5)), "the last one too: nothing came after it"


@pytest.mark.parametrize("when", ["next", "last"])
def test_what_goes_wrong_at_a_late_end_is_told_of_each_closure(cluster: Cluster, when: str) -> None:
    class Failing(AbstractFunction):
        """Begins a closure by ending the one before, which the servers do not take."""

        awaits_servers = False  # type: ignore[assignment]
        forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

        def __init__(self) -> None:
            self.begun: list[int] = []
            self.num_recovered = 0

        def begin(self, call: Call) -> list[Ended]:
            if self.begun:
                raise ValueError("not taken")
            self.begun.append(call.number)
            return []

        def finish(self) -> list[Ended]:
            if self.begun and when == "last":
                raise ValueError("not taken")
            return []

        def under_way(self) -> list[int]:
            return list(self.begun)

        def recover(self, meanwhile: Callable[[], None]) -> None:
            self.begun.clear()
            self.num_recovered += 1

    function = Failing()
    values = [cluster.schedule("fail") for _ in range(2 if when == "next" else 1)]
    cluster.work("worker 0", fail=function)  # once both are there: nothing is ended for want of a next one
    with pytest.raises(ClosureError):
        cluster.dispatcher.join()
    for value in values:
        with pytest.raises(ClosureError, match=r"not taken|aborted by the failure of a later one"):
            value.fetch()
    assert function.num_recovered == 1


def test_closures_that_cannot_be_run_now_are_given_back_and_run_later() -> None:
    cluster = Cluster()
    function = Late()
    function.is_reachable = False
    cluster.work("worker 0", late=function)
    values = [cluster.schedule("late") for _ in range(3)]
    assert function.is_recovering.wait(TIMEOUT_S)
    assert cluster.dispatcher.wait_until_none_runs(timeout_s=0.0) == 0
    assert not any(value.is_ended for value in values)
    function.may_recover.set()
    cluster.dispatcher.join()
    assert [value.fetch() for value in values] == [0, 1, 2]
    cluster.close()


def test_what_had_ended_before_an_error_is_told_of_at_once() -> None:
    """What a lost server's successor lacks is counted when all workers have missed it."""

    class Ending(AbstractFunction):
        awaits_servers = False  # type: ignore[assignment]

        def __init__(self) -> None:
            self.may_fail = threading.Event()
            self.may_recover = threading.Event()
            self.begun: list[int] = []
            self.has_failed = False

        def begin(self, call: Call) -> list[Ended]:
            self.begun.append(call.number)
            if len(self.begun) == 2 and not self.has_failed:
                self.has_failed = True
                assert self.may_fail.wait(TIMEOUT_S)
                raise GiveBackError("out of reach, when the one before had ended")
            return [Ended(number=call.number, value=call.number)] if self.has_failed else []

        def finish(self) -> list[Ended]:
            return [Ended(number=number, value=number) for number in self.begun]

        def under_way(self) -> list[int]:
            return self.begun[1:]

        def forget(self) -> list[Ended]:
            ended, self.begun = self.begun[:1], []
            return [Ended(number=number, value=number) for number in ended]

        def recover(self, meanwhile: Callable[[], None]) -> None:
            assert self.may_recover.wait(TIMEOUT_S)

    cluster = Cluster()
    function = Ending()
    values = [cluster.schedule("end") for _ in range(3)]
    cluster.work("worker 0", end=function)
    wait_until(lambda: len(function.begun) == 2)
    assert cluster.dispatcher.wait_until_none_runs(timeout_s=0.01) == 2, "it still computes"
    function.may_fail.set()
    assert cluster.dispatcher.wait_until_none_runs(timeout_s=TIMEOUT_S) == 0
    assert cluster.dispatcher.ended().num_since(0) == 1
    function.may_recover.set()
    cluster.dispatcher.join()
    assert [value.fetch() for value in values] == [0, 1, 2]
    cluster.close()


def test_a_closure_that_is_given_back_again_and_again_is_told_of_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refused(AbstractFunction):
        """Is given back so many times."""

        awaits_servers = False  # type: ignore[assignment]
        forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

        num_times = 0

        def begin(self, call: Call) -> list[Ended]:
            self.num_times += 1
            if self.num_times <= 12:
                raise GiveBackError("a push that is too large")
            return [Ended(number=call.number, value=self.num_times)]

        finish = under_way = lambda self: []  # type: ignore[assignment]

        def recover(self, meanwhile: Callable[[], None]) -> None:
            meanwhile()

    caplog.set_level(logging.INFO)
    cluster = Cluster()
    cluster.work("worker 0", refused=Refused())
    assert cluster.schedule("refused").fetch() == 13
    cluster.close()
    once = "worker 0 has given closure 0 (refused) back, which waits again: a push that is too large"
    often = "closure 0 (refused) was given back repeatedly (10 times: a push that is too large); it waits again"
    told = [(one.levelno, one.getMessage()) for one in caplog.records if one.name.endswith("wait_logging")]
    assert told == [(logging.INFO, once), (logging.WARNING, often)]
    own = [one.getMessage() for one in caplog.records if one.name.endswith("working")]
    assert own == ["1 closure given back, and waited until they can be run: a push that is too large"] * 12


class Pushed(AbstractFunction):
    """Waits for the servers' answer, which comes when another has pushed too."""

    awaits_servers = False  # type: ignore[assignment]
    forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

    def __init__(self) -> None:
        self.is_answered = threading.Event()

    def begin(self, call: Call) -> list[Ended]:
        self.awaits_servers = True
        assert self.is_answered.wait(TIMEOUT_S)
        self.awaits_servers = False
        return [Ended(number=call.number, value=None)]

    finish = under_way = lambda self: []  # type: ignore[assignment]
    recover = lambda self: None  # type: ignore[assignment]  # noqa: E731


def test_it_is_said_whom_the_others_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    cluster = Cluster(clock=lambda: now_s[0])
    is_over, pushed = threading.Event(), Pushed()
    values = [cluster.schedule("run") for _ in range(2)]
    cluster.work("worker 0", poll_interval_s=0.01, run=pushed)
    stays = cluster.dispatcher._wait_logger._stall_detector._stays
    wait_until(lambda: "worker 0" in stays and stays["worker 0"].awaits_servers)
    cluster.work("worker 1", run=lambda: is_over.wait(TIMEOUT_S) and None)
    wait_until(lambda: len(cluster.ran) == 1)
    for now_s[0] in (61.0, 130.0):
        wait_until(lambda: f"for {now_s[0]:.0f} s" in caplog.text)
    is_over.set()
    pushed.is_answered.set()
    cluster.dispatcher.join()
    assert all(value.is_ended for value in values)
    cluster.close()
    said = "worker 1 has been at closure 1 (run) for {} s; the others wait for it"
    assert caplog.messages == [said.format(61), said.format(130)]


def test_where_the_cluster_cannot_go_on_every_worker_hears_of_the_end() -> None:
    cluster = Cluster(max_lead=0)
    slow = Link(cluster.address, peer_name="chief 0", token=TOKEN, name="slow", silence_s=4.0, connect_s=TIMEOUT_S)
    cluster.links.append(slow)
    slow.request(Message(kind="ready"))
    values = [cluster.schedule("add", 1, 1) for _ in range(4)]
    slow.begin(Message(kind="next"))
    assert slow.end().kind == "closure"
    cluster.work("worker 1", add=lambda a, b: a + b)  # takes one, and may not be further ahead
    wait_until(lambda: cluster.ran)
    cluster.dispatcher.fail(UnavailableError("a server is lost for good"))
    slow.request(Message(kind="give back", fields={"closures": []}))
    for value in values[2:]:
        with pytest.raises(UnavailableError, match="lost for good"):
            value.fetch()
    heard: list[str] = []
    thread = threading.Thread(target=lambda: heard.append(slow.request(Message(kind="next")).kind), daemon=True)
    thread.start()
    cluster.threads.append(thread)  # has its answer before its link is closed
    cluster.close()
    assert heard == ["stop"]
    assert cluster.errors == []


def test_a_worker_that_waits_for_servers_hears_that_the_training_is_over() -> None:
    cluster = Cluster()
    function = Late()
    function.is_reachable = False
    cluster.work("worker 0", late=function)
    cluster.schedule("late")
    assert function.is_recovering.wait(TIMEOUT_S)
    cluster.close()  # waits for the worker's end
    assert cluster.errors == []
    assert not function.may_recover.is_set()


def test_what_waits_can_be_taken_back(cluster: Cluster) -> None:
    ended: list[RemoteValue] = []
    values = [cluster.dispatcher.schedule(Closure(function="one", on_end=ended.append)) for _ in range(3)]
    assert cluster.dispatcher.cancel_waiting() == 3
    assert ended == values
    assert all(value.is_cancelled for value in values)
    assert cluster.dispatcher.done(), "nobody is told of it as of an error"
    assert cluster.dispatcher.watermark == 3


def test_a_worker_that_is_at_a_closure_hears_of_the_end_when_it_has_ended() -> None:
    cluster = Cluster()
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(TIMEOUT_S)

    cluster.work("worker 0", wait=wait)
    cluster.work("worker 1", wait=wait)
    wait_until(lambda: len(cluster.dispatcher.workers) == 2)  # one that comes once it has ended finds nobody
    value = cluster.schedule("wait")
    assert begun.wait(TIMEOUT_S)
    ending = threading.Thread(target=cluster.dispatcher.close)
    ending.start()
    go.set()
    ending.join(TIMEOUT_S)
    assert not ending.is_alive()
    cluster.close()
    assert cluster.errors == [], "nobody has lost the coordinator"
    assert cluster.dispatcher.dismissed == {"worker 0", "worker 1"}
    assert value.is_ended
