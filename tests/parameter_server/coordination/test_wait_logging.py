"""Who keeps all others waiting is found out once nobody goes on, and told at ever longer times."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from lockstep.errors import UnavailableError
from lockstep.parameter_server.coordination.wait_logging import (
    LATE_S,
    MANY,
    GiveBackCounter,
    Late,
    StallDetector,
    WaitLogger,
)


def late(worker: str, closure: int, stay_s: float, *, awaits_servers: bool = False) -> Late:
    return Late(worker=worker, closure=closure, stay_s=stay_s, awaits_servers=awaits_servers)


def test_a_worker_is_late_once_nobody_has_gone_on_for_long() -> None:
    detector = StallDetector()
    detector.begin("worker 1", 17, now_s=0.0)
    for number in range(1, 5):  # the others go on without it
        detector.begin("worker 0", 17 + number, now_s=30.0 * number)
        assert detector.late(now_s=30.0 * number + LATE_S - 1) == []
    detector.end("worker 0", now_s=125.0)  # there is nothing that it may do
    assert detector.late(now_s=125.0 + LATE_S - 1) == []
    assert detector.late(now_s=125.0 + LATE_S) == [late("worker 1", 17, 185.0)]


def test_it_is_told_at_ever_longer_times_until_somebody_goes_on() -> None:
    detector = StallDetector()
    detector.begin("worker 0", 3, now_s=0.0)
    told_s = [now_s for now_s in range(1000) if detector.late(now_s=float(now_s))]
    assert told_s == [60, 120, 240, 480, 960]
    detector.go_on("worker 0", now_s=1000.0)
    assert detector.late(now_s=1059.0) == []
    assert detector.late(now_s=1060.0) == [late("worker 0", 3, 60.0)]
    detector.end("worker 0", now_s=1061.0)
    assert detector.late(now_s=9999.0) == [], "nobody is at anything"


def test_who_waits_at_the_servers_is_not_taken_for_the_one_that_is_waited_for() -> None:
    detector = StallDetector()
    for number in range(3):
        detector.begin(f"worker {number}", number, now_s=0.0)
    detector.note_awaits_servers("worker 0", 0)
    detector.note_awaits_servers("worker 2", 2)
    detector.note_awaits_servers("worker 1", 0)  # of a closure that it was at before
    detector.note_awaits_servers("worker 3", 3)  # has gone
    assert detector.late(now_s=60.0) == [late("worker 1", 1, 60.0)]
    detector.end("worker 1", now_s=61.0)
    found = detector.late(now_s=121.0)
    assert found == [late(f"worker {number}", number, 121.0, awaits_servers=True) for number in (0, 2)]


def test_what_is_given_back_is_counted_by_reason_until_it_has_ended() -> None:
    given = GiveBackCounter()
    for number in range(1, 8):
        assert given.note(3, reason="too large" if number % 3 else "gone") == number
    assert given.note(4, reason="gone") == 1
    assert given.reasons(3) == "5 times: too large; 2 times: gone"
    given.forget(3)
    assert given.note(3, reason="gone") == 1


@pytest.fixture
def now_s() -> list[float]:
    return [0.0]


@pytest.fixture
def wait_logger(now_s: list[float]) -> WaitLogger:
    clock: Callable[[], float] = lambda: now_s[0]  # noqa: E731
    return WaitLogger(
        address="here:1", wait_for_workers_s=100.0, describe=lambda number: f"closure {number} (f)", clock=clock
    )


@pytest.mark.parametrize(
    ("num_workers", "is_pushed", "words"),
    [
        (1, False, "the coordinator waits for it"),
        (3, False, "the others wait for it"),
        (1, True, "it has pushed, and the servers do not answer"),
    ],
)
def test_one_line_names_the_worker_its_closure_and_who_waits(
    wait_logger: WaitLogger,
    now_s: list[float],
    caplog: pytest.LogCaptureFixture,
    num_workers: int,
    is_pushed: bool,
    words: str,
) -> None:
    wait_logger.begin("worker 1", 17)
    if is_pushed:
        wait_logger.note_awaits_servers("worker 1", 17)
    for now_s[0] in (59.0, 61.0, 62.0, 125.0):
        wait_logger.log_who_is_late(num_workers=num_workers)
    expected = [f"worker 1 has been at closure 17 (f) for {stay_s} s; {words}" for stay_s in (61, 125)]
    assert caplog.messages == expected


def test_a_closure_that_is_given_back_for_ever_is_told_of_now_and_then(
    wait_logger: WaitLogger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2 * MANY):
        wait_logger.note_given_back(17, worker="worker 1", reason="it is too large")
    first, *others = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert first == (logging.INFO, "worker 1 has given closure 17 (f) back, which waits again: it is too large")
    again = "closure 17 (f) was given back repeatedly"
    assert others == [
        (logging.WARNING, f"{again} ({number} times: it is too large); it waits again") for number in (MANY, 2 * MANY)
    ]


def test_that_no_worker_comes_is_said_and_ends(
    wait_logger: WaitLogger, now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    wait_logger.rejection = "; worker 0 has another model"
    found: list[UnavailableError | None] = []
    for now_s[0] in (0.0, 31.0, 40.0, 62.0, 101.0):
        found.append(wait_logger.check_workers(is_alone=True))
    assert found[:-1] == [None] * 4
    expected = (
        "no worker has connected to here:1 for 101 s; worker 0 has another model; start the workers, or look into"
    )
    assert str(found[-1]).startswith(expected)
    assert caplog.messages == [
        f"waiting for workers: none has connected to here:1 for {waited_s} s" for waited_s in (31, 62)
    ]
    assert wait_logger.check_workers(is_alone=False) is None
    now_s[0] = 300.0
    assert wait_logger.check_workers(is_alone=True) is None, "it begins anew"
