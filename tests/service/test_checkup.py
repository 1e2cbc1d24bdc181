"""The checks of the service's machine: in a process of their own, at most once a minute, for operators alone."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.doctor import Diagnosis, Finding, Remark, Severity, Surroundings
from lockstep.home import Home
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.api.doctor import own_findings
from lockstep.service.checkup import KEPT_S, Checkup, examine_in_process
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

WAIT_S = 60.0
FOUND = Diagnosis(
    findings=(
        Finding(check="disk", severity=Severity.WARNING, what="<full>", received="r", needed="n", remedy="rm '<x>'"),
    ),
    passed=(Remark(check="kernel", text="fine"),),
    skipped=(Remark(check="drivers", text="no GPU"),),
)


class Doctor:
    """Examines nothing, as often as it is asked, once it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.asked: list[Surroundings] = []
        self.now_s = 1000.0

    def examine(self, surroundings: Surroundings) -> Diagnosis:
        self.asked.append(surroundings)
        assert self.may_end.wait(WAIT_S)
        return FOUND

    def checkup(self) -> Checkup:
        return Checkup(examine=self.examine, clock=lambda: self.now_s)


HERE = Surroundings(home=Home(path=Path("/nowhere")), of_service=True)


def test_results_are_kept_for_a_minute_and_nobody_waits_for_newer_ones() -> None:
    doctor = Doctor()
    checkup = doctor.checkup()
    also = FOUND.findings[0]
    worse = replace(also, severity=Severity.ERROR, what="worse")
    first = checkup.latest(HERE, also=lambda: [worse], wait_s=0.0)
    assert (first.diagnosis, first.is_running) == (None, True)
    began = time.monotonic()
    assert checkup.latest(HERE, also=list, wait_s=WAIT_S).is_running, "only who starts an examination waits for it"
    assert time.monotonic() - began < WAIT_S / 2
    doctor.may_end.set()
    deadline = time.monotonic() + WAIT_S
    while (found := checkup.latest(HERE, also=list, wait_s=0.0)).is_running:
        assert time.monotonic() < deadline
    assert found.diagnosis is not None
    assert [each.what for each in found.diagnosis.findings] == ["worse", "<full>"]
    doctor.now_s += KEPT_S - 1
    checkup.latest(HERE, also=list, wait_s=WAIT_S)
    assert len(doctor.asked) == 1
    doctor.now_s += 2
    again = checkup.latest(HERE, also=list, wait_s=WAIT_S)
    assert len(doctor.asked) == 2
    assert again.diagnosis == FOUND


def test_an_examination_that_fails_is_told_and_tried_again() -> None:
    def fail(_: Surroundings) -> Diagnosis:
        raise RuntimeError("no")

    found = Checkup(examine=fail).latest(HERE, also=list, wait_s=WAIT_S)
    assert found.diagnosis is not None
    assert "RuntimeError: no" in found.diagnosis.findings[0].received


def test_the_checks_run_in_a_process_of_their_own(tmp_path: Path) -> None:
    found = examine_in_process(Surroundings(home=Home(path=tmp_path), of_service=True, bucket=str(tmp_path / "b")))
    names = {each.check for each in (*found.findings, *found.passed, *found.skipped)}
    assert {"bucket", "disk", "limits", "versions", "leftovers"} <= names
    assert not names & {"credentials", "client", "clocks", "doctor"}
    assert "bucket" in {each.check for each in found.passed}


@pytest.fixture
def doctor(service: Served) -> Doctor:
    doctor = Doctor()
    doctor.may_end.set()
    object.__setattr__(service.context, "checkup", doctor.checkup())
    return doctor


def test_an_operator_of_all_projects_is_told_and_nobody_else(service: Served, doctor: Doctor) -> None:
    answer: dict[str, Any] = service.http.get("/v1/doctor").json()
    assert answer["checking"] is False
    assert answer["time"].endswith("Z")
    assert answer["findings"] == [each.to_json() for each in FOUND.findings]
    assert (answer["passed"], answer["skipped"]) == (
        [{"check": "kernel", "text": "fine"}],
        [{"check": "drivers", "text": "no GPU"}],
    )
    (asked,) = doctor.asked
    assert (asked.of_service, asked.bucket) == (True, service.context.settings.bucket)
    assert service.client(service.key(Scope.OPERATOR, project="vision")).get("/v1/doctor").status_code in (403, 404)
    assert service.client(service.key(Scope.SUBMITTER)).get("/v1/doctor").status_code == 403


def test_a_node_whose_clock_is_ahead_and_programs_of_root_are_told(service: Served, bench: Bench) -> None:
    bench.create("j", "import time; time.sleep(60)")
    bench.step_until_state("j", JobState.RUNNING)
    job = bench.job("j")
    (replica,) = job.replicas
    late = replace(replica.status, host="node-7", progress=Progress(time_s=time.time() + 100))
    context = replace(
        service.context,
        settings=replace(service.context.settings, users_warning="install it in /opt"),
        jobs=_Jobs(replace(job, replicas=(replace(replica, status=late),))),
    )
    users, clocks = own_findings(context, clock=time.time)
    assert (users.check, users.received) == ("users", service.context.settings.users_note)
    assert clocks.what == "the clock of node node-7 is ahead"


class _Jobs:
    """A store with one job that runs."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def running(self) -> list[Any]:
        return [self._job]
