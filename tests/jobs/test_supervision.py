"""What a gang supervisor does next, decided without processes or clocks."""

from __future__ import annotations

import pytest

from lockstep.jobs.orders import (
    GANG_ORDER,
    GANG_STATUS,
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.supervision import LINGER_S, Step, next_step

ROLES = ("master", "worker", "ps")
GANG = GangOrder(
    gang_id="g",
    replicas=tuple(
        ReplicaOrder(name=role, role=role, index=0, job="j", command=("x",), spool="/s", log_url="/l") for role in ROLES
    ),
)
OK = ProgramEnd(exit_code=0)
STOPPED = ProgramEnd(signal="SIGTERM", stopped=True)
KILLED = ProgramEnd(signal="SIGKILL")


def _running(name: str) -> ReplicaStatus:
    return ReplicaStatus(name=name, phase=ReplicaPhase.RUNNING, started_time_s=1.0)


def _ended(name: str, end: ProgramEnd, *, at_s: float = 10.0) -> ReplicaStatus:
    return ReplicaStatus(name=name, phase=ReplicaPhase.ENDED, started_time_s=1.0, ended_time_s=at_s, end=end)


def _step(*statuses: ReplicaStatus, stop: bool = False, now_s: float = 10.0) -> Step:
    return next_step(GANG, statuses={s.name: s for s in statuses}, stop_requested=stop, now_s=now_s)


def test_a_gang_is_placed_when_all_of_it_is() -> None:
    assert _step(_running("master")).phase is GangPhase.PLACING
    setting_up = ReplicaStatus(name="ps", phase=ReplicaPhase.SETUP)
    assert _step(_running("master"), _running("worker"), setting_up).phase is GangPhase.STARTING
    assert _step(*map(_running, ROLES)).phase is GangPhase.RUNNING


def test_a_failure_stops_the_others_and_names_the_first_one() -> None:
    assert set(_step(_running("master"), _ended("worker", KILLED), _running("ps")).stop) == {"master", "ps"}
    step = _step(
        _ended("master", ProgramEnd(exit_code=1), at_s=12.0), _ended("worker", KILLED, at_s=11.0), _ended("ps", STOPPED)
    )
    assert step.end == GangEnd(outcome=GangOutcome.FAILED, reason="replica worker: killed by SIGKILL", culprit="worker")


def test_the_leaders_success_ends_servers_at_once_and_workers_after_a_while() -> None:
    statuses = (_ended("master", OK), _running("worker"), _running("ps"))
    assert _step(*statuses, now_s=10.0).stop == ("ps",)
    assert set(_step(*statuses, now_s=10.0 + LINGER_S).stop) == {"worker", "ps"}
    done = _step(_ended("master", OK), _ended("worker", STOPPED), _ended("ps", STOPPED))
    assert done.end == GangEnd(outcome=GangOutcome.SUCCEEDED)


def test_a_request_stops_all_that_lives() -> None:
    assert set(_step(*map(_running, ROLES), stop=True).stop) == set(ROLES)
    end = _step(*(_ended(name, STOPPED) for name in ROLES), stop=True).end
    assert end is not None
    assert end.outcome is GangOutcome.STOPPED


@pytest.mark.parametrize("stop", [False, True])
def test_a_worker_that_was_done_before_is_no_failure(stop: bool) -> None:
    assert _step(_running("master"), _ended("worker", OK), _running("ps"), stop=False).stop == ()
    end = _step(_ended("master", OK), _ended("worker", OK), _ended("ps", STOPPED), stop=stop).end
    assert end == GangEnd(outcome=GangOutcome.SUCCEEDED)


def test_a_leader_that_ends_well_because_it_was_stopped_is_no_success() -> None:
    saved = ProgramEnd(exit_code=0, stopped=True)
    failed = _step(_ended("master", saved, at_s=12.0), _ended("worker", KILLED, at_s=11.0), _ended("ps", STOPPED))
    assert failed.end is not None
    assert failed.end.outcome is GangOutcome.FAILED
    stopped = _step(*(_ended(name, saved) for name in ROLES), stop=True)
    assert stopped.end is not None
    assert stopped.end.outcome is GangOutcome.STOPPED


def test_a_worker_that_fails_after_the_leader_is_done_spoils_nothing() -> None:
    end = _step(_ended("master", OK, at_s=10.0), _ended("worker", KILLED, at_s=11.0), _ended("ps", STOPPED)).end
    assert end == GangEnd(outcome=GangOutcome.SUCCEEDED)
    before = _step(_ended("master", OK, at_s=11.0), _ended("worker", KILLED, at_s=10.0), _ended("ps", STOPPED)).end
    assert before is not None
    assert before.culprit == "worker"


def test_orders_and_statuses_travel_as_json() -> None:
    assert GANG_ORDER.validate_json(GANG_ORDER.dump_json(GANG)) == GANG
    status = GangStatus(
        gang_id="g",
        phase=GangPhase.ENDED,
        replicas=(_ended("master", ProgramEnd(exit_code=3, tail=("a", "b"), num_log_entries=2)),),
        end=GangEnd(outcome=GangOutcome.FAILED, reason="r", culprit="master"),
    )
    assert GANG_STATUS.validate_json(GANG_STATUS.dump_json(status)) == status
