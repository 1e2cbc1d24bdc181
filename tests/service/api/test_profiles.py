"""Profiles on demand through the service: the way of a request to a program, and of its report back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client
from lockstep.client.addresses import ServiceAddress
from lockstep.client.profiles import fetch_profile
from lockstep.errors import (
    BackendError,
    ConflictError,
    DeadlineError,
    InvalidInputError,
    LockstepError,
    NotFoundError,
    PermissionDeniedError,
    WrongStateError,
)
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.store import JobRecord
from lockstep.testing.bench import TIMEOUT_S, Bench
from lockstep.testing.served import HOME_TOKEN, Served

MASTER = "master-replica-0"

PROGRAM = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
from lockstep.heartbeat import ProfileReport, ProfileState, current_sender, report_progress

sender = current_sender()
for step in range(100_000):
    if {reports}:
        report_progress(step=step)
    request = sender.profile_requests.take() if {takes} else None
    if request is not None:
        report = ProfileReport(
            request_id=request.request_id, state=ProfileState.RECORDING, num_steps=request.num_steps
        )
        sender.report_profile(report)
        if {ends}:
            sys.exit()
        if request.num_steps == 7:
            sender.report_profile(replace(report, state=ProfileState.FAILED, problem="no profiler here"))
        elif request.num_steps < 100:
            folder = Path(os.environ["AIP_TENSORBOARD_LOG_DIR"], "plugins/profile/now")
            folder.mkdir(parents=True)
            name = request.name + ".xplane.pb"
            (folder / name).write_bytes(b"trace")
            done = replace(report, state=ProfileState.DONE, folder="plugins/profile/now", files=(name,))
            sender.report_profile(done)
    time.sleep(0.05)
"""


def _program(*, reports: bool = True, takes: bool = True, ends: bool = False) -> str:
    return PROGRAM.replace("{reports}", str(reports)).replace("{takes}", str(takes)).replace("{ends}", str(ends))


def _client(service: Served, token: str = HOME_TOKEN) -> Client:
    client = Client(ServiceAddress(url=service.url, token=token))
    service.closing.insert(0, client.close)
    return client


def _has_step(job: JobRecord) -> bool:
    progress = job.replicas[0].status.progress if job.replicas else None
    return progress is not None and progress.step is not None


def _fetch(bench: Bench, client: Client, to: Path, *, timeout_s: float = TIMEOUT_S, num_steps: int = 5) -> Any:
    """Fetches a profile in a thread, while this one runs the controller. Raises what the fetching raises."""
    outcome: list[Any] = []

    def fetch() -> None:
        try:
            outcome.append(fetch_profile(client, "runs", num_steps=num_steps, replica=None, to=to, timeout_s=timeout_s))
        except LockstepError as error:
            outcome.append(error)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while thread.is_alive():
        assert time.monotonic() < deadline
        bench.step()
        thread.join(0.1)
    if isinstance(outcome[0], LockstepError):
        raise outcome[0]
    return outcome[0]


def test_a_profile_is_recorded_and_downloaded_and_only_one_at_a_time(
    bench: Bench, service: Served, tmp_path: Path
) -> None:
    client = _client(service)
    bench.create("runs", _program())
    with pytest.raises(WrongStateError, match="only a running job can be profiled"):
        fetch_profile(client, "runs", num_steps=5, replica=None, to=tmp_path, timeout_s=5)
    bench.step_until("runs", _has_step)
    files, num_steps = _fetch(bench, client, tmp_path / "here")
    assert num_steps == 5
    assert files == [tmp_path / "here/plugins/profile/now/master-replica-0.xplane.pb"]
    assert files[0].read_bytes() == b"trace"
    (replica,) = client.job("runs")["lockstep"]["replicas"]
    assert replica["profile"]["files"] == ["tensorboard/plugins/profile/now/master-replica-0.xplane.pb"]
    (noted,) = [event for event in bench.store.events(bench.job("runs").uid) if event.kind == "profile"]
    assert noted.detail == "home requested a profile of 5 steps of master-replica-0"
    with pytest.raises(BackendError, match="job runs has recorded no profile: no profiler here"):
        _fetch(bench, client, tmp_path, num_steps=7)
    client.request_profile("runs", replica=MASTER, num_steps=100)  # the program never completes this one
    bench.step_until("runs", lambda job: _state(job) == "recording")
    with pytest.raises(ConflictError, match="a profile of replica master-replica-0 is being recorded"):
        client.request_profile("runs", replica=MASTER, num_steps=5)


def _state(job: JobRecord) -> str:
    profile = job.replicas[0].status.profile
    return "" if profile is None else profile.state.value


@pytest.mark.parametrize(
    ("program", "timeout_s", "kind", "message"),
    [
        (_program(ends=True), TIMEOUT_S, WrongStateError, "the program ended before it was complete"),
        (_program(takes=False), 1.0, DeadlineError, "began no training step within 1 s"),
    ],
)
def test_a_program_that_records_none_is_named(
    bench: Bench,
    service: Served,
    tmp_path: Path,
    program: str,
    timeout_s: float,
    kind: type[LockstepError],
    message: str,
) -> None:
    bench.create("runs", program)
    bench.step_until("runs", _has_step)
    with pytest.raises(kind, match=message):
        _fetch(bench, _client(service), tmp_path, timeout_s=timeout_s)


def test_what_cannot_be_profiled_is_refused(bench: Bench, service: Served) -> None:
    client = _client(service)
    bench.create("runs", _program(reports=False))
    bench.step_until_state("runs", JobState.RUNNING)

    def request(replica: str = MASTER, *, steps: int = 20, client: Client = client) -> Callable[[], Any]:
        return lambda: client.request_profile("runs", replica=replica, num_steps=steps)

    with pytest.raises(WrongStateError, match="has reported no training step; wait until it trains"):
        request()()
    with pytest.raises(NotFoundError, match=r"no such replica; received .worker-replica-9"):
        request("worker-replica-9")()
    with pytest.raises(InvalidInputError, match="numSteps; received 0; allowed: 1 to 1000"):
        request(steps=0)()
    viewer = _client(service, service.key(Scope.VIEWER, project="local"))
    with pytest.raises(PermissionDeniedError):
        request(client=viewer)()
    other = _client(service, service.key(Scope.OPERATOR, project="other"))
    with pytest.raises(NotFoundError, match="no project 'local' for this key"):
        request(client=other)()
