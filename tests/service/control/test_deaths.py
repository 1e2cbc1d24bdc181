"""The controller can be killed between any two lines, and a client may come between any two statements."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.service.control.deaths import SCENARIOS

from lockstep.jobs.running.states import TERMINAL, TRANSITIONS, JobEvent, JobState

SCRIPT = Path(__file__).with_name("deaths.py")


def play(how: str, *names: str) -> dict[str, dict[str, Any]]:
    """Returns what the process that kills controllers has found, by scenario."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), how, *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["scenario"]: one for one in found}


TOGETHER = ("succeeds", "cancelled_while_it_runs")
"""Lives with the same beginning, which is played once for both."""

FOUND: dict[str, dict[str, Any]] = {}


def deaths_of(name: str) -> dict[str, Any]:
    """Returns what was found of one life, played once."""
    if name not in FOUND:
        FOUND.update(play("new", *TOGETHER) if name in TOGETHER else play("new", name))
    return FOUND[name]


EXPECTED = {
    "succeeds": ("SUCCEEDED", None, 1, 1),
    "fails": ("FAILED", "USER_ERROR(exit 3, master-0)", 1, 1),
    "restarts_twice": ("SUCCEEDED", None, 3, 3),
    "restarts_a_replica": ("SUCCEEDED", None, 1, 1),
    "uses_up_its_restarts": ("FAILED", "MACHINE_ERROR(SIGKILL, master-0)", 2, 2),
    "cancelled_while_it_waits": ("CANCELLED", "CANCELLED(test)", 0, 0),
    "cancelled_while_it_is_placed": ("CANCELLED", "CANCELLED(test)", 1, 0),
    "cancelled_while_it_runs": ("CANCELLED", "CANCELLED(test)", 1, 1),
    "cancelled_after_a_restart": ("CANCELLED", "CANCELLED(test)", 2, 2),
    "lost_while_it_is_cancelled": ("CANCELLED", "CANCELLED(test)", 1, 1),
    "runs_too_long": ("CANCELLED", "MAX_RUNNING_TIME", 1, 1),
    "waits_too_long": ("CANCELLED", "MAX_WAIT_TIME", 0, 0),
    "unreadable_in_the_queue": ("FAILED", None, 0, 0),
    "unreadable_while_it_runs": ("FAILED", None, 1, 0),
}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.heavy
def test_a_job_ends_the_same_wherever_the_controller_is_killed(name: str) -> None:
    found = deaths_of(name)
    expected = found["expected"]
    how = (expected["state"], expected["end_reason"], expected["num_starts"], len(expected["attempts"]))
    assert how == EXPECTED[name], "what happens without a death"
    assert (expected["released"], expected["left_on_the_engine"]) == (True, [])
    assert found["num_runs"] > 0
    assert found["different"] == []


@pytest.mark.heavy
def test_every_statement_and_every_act_is_a_point() -> None:
    deaths = [deaths_of(name) for name in TOGETHER]
    points = {point for found in deaths for point in found["points"]}
    assert {"start", "nodes", "place", "observe", "stop", "forget", "BEGIN", "BEGIN IMMEDIATE", "COMMIT"} <= points
    for beginning in ("UPDATE jobs", "INSERT INTO job_attempts", "INSERT INTO job_events", "SELECT jobs.uid"):
        assert any(point.startswith(beginning) for point in points), beginning
    assert sum(found["num_runs"] for found in deaths) > 100


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["succeeds", pytest.param("restarts_twice", marks=pytest.mark.heavy)])
def test_a_client_may_cancel_between_any_two_statements(name: str) -> None:
    outcomes = play("cancel", name)[name]["outcomes"]
    assert len(outcomes) > 20
    assert {"CANCELLED", "SUCCEEDED"} <= {outcome["state"] for outcome in outcomes}
    for outcome in outcomes:
        assert JobState(outcome["state"]) in TERMINAL, outcome
        assert (outcome["released"], outcome["left_on_the_engine"], outcome["started_twice"]) == (True, [], []), outcome
        assert outcome["bill"] is not None, outcome
        for (_, before, _), (kind, after, _) in pairwise(outcome["events"]):
            assert TRANSITIONS[JobState(before), JobEvent(kind)] == after, outcome


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_each_scenario_at_each_of_its_points() -> None:
    assert {name: found["different"] for name, found in play("all", *SCENARIOS).items()} == {
        name: [] for name in SCENARIOS
    }


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["succeeds", "cancelled_while_it_runs"])
def test_the_controller_that_goes_on_may_be_killed_as_well(name: str) -> None:
    found = play("pairs", name)[name]
    assert found["num_runs"] > 500
    assert found["different"] == []
