"""Service and engine are killed under a job, and one is started later: what the job is billed, and what is shown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from lockstep.testing.machine import TIMEOUT_S, Machine

DOWN_S = 6.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.run("up")
    yield made
    made.run("down", "--cancel")


def _commands(machine: Machine) -> list[str]:
    """Returns the words of all command lines of a home's processes."""
    words: list[str] = []
    for process in machine.processes():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            words += process.cmdline()
    return words


def _await_end_of_runners(machine: Machine) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while "lockstep.runner" in _commands(machine):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.heavy
def test_an_outage_is_billed_to_nobody_and_describe_shows_what_is(own: Machine) -> None:
    own.submit("job", lines=10_000, pause_s=0.05)
    own.wait("job", lambda job: "line 20" in own.log_texts("job"))
    head = json.loads((own.home.engine / "head.json").read_text())["process"]["pid"]
    own.kill_service()
    os.kill(head, signal.SIGKILL)
    killed_s = time.time()
    _await_end_of_runners(own)
    gone_s = time.time()
    assert "count" not in _commands(own), "with the engine its programs have ended"
    time.sleep(DOWN_S)  # the outage itself: it would be billed
    own.run("up")
    own.wait("job", lambda job: job["state"] == "RUNNING" and job["lockstep"]["numRestarts"] == 1)
    own.wait("job", lambda job: "line 5" in own.log_texts("job"))
    own.run("cancel", "job")
    job = own.wait("job", lambda job: job["state"] == "CANCELLED")
    first, second = job["lockstep"]["attempts"]
    ended_s = datetime.fromisoformat(first["endTime"]).timestamp()
    assert killed_s - 0.01 <= ended_s <= gone_s, "to the time at which the program ended"
    assert first["latestEndTime"] is None, "its runner recorded it"
    assert (first["attempt"], first["endReason"]) == (0, "NODE_LOST")
    assert (second["attempt"], second["endReason"]) == (1, "CANCELLED(by home)")
    for attempt in (first, second):
        start, end = (datetime.fromisoformat(attempt[name]).timestamp() for name in ("startTime", "endTime"))
        assert float(attempt["machineSeconds"]) == pytest.approx(end - start, abs=0.002)
    usd = sum(Decimal(attempt["costUsd"]) for attempt in (first, second))
    assert str(usd) == job["lockstep"]["bill"]["costUsd"]
    with own.client() as client:
        events = {event["kind"]: event for event in client.job_events("job")}
    assert events["restarted"]["time"] == first["endTime"]
    recorded_s = datetime.fromisoformat(events["restarted"]["recordedTime"]).timestamp()
    assert recorded_s - ended_s > DOWN_S
    shown = own.run("describe", "job")
    assert "ATTEMPT  START" in shown
    assert "NODE_LOST: restart 1 of at most 3 (recorded " in shown
    assert not list(own.home.spool.glob("*/*/status.json"))
