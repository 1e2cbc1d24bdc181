"""Shells through the service: who gets one, what is recorded, and that it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import psutil
import pytest
from sqlalchemy.exc import OperationalError

from lockstep.client import Client
from lockstep.client.addresses import ServiceAddress
from lockstep.clusters import AbstractShell
from lockstep.errors import (
    EngineError,
    InvalidInputError,
    LockstepError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
    WrongStateError,
)
from lockstep.jobs.running.shell_frames import SHELL_END, FrameKind, FrameReader, ShellEnd, ShellRequest, encode_frame
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.api.control import shell_route
from lockstep.service.api.resources import job_resource
from lockstep.service.store import JobStore
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

WAIT = "import time; print('up', flush=True); time.sleep(600)"
MASTER = "master-replica-0"


def _client(service: Served, token: str = HOME_TOKEN) -> Client:
    address = ServiceAddress(url=service.url, token=token)
    client = Client(address)
    service.closing.insert(0, client.close)
    return client


def _run(client: Client, *command: str, job: str = "runs", replica: str = MASTER) -> tuple[bytes, ShellEnd | None]:
    shell = client.open_shell(job, replica=replica, request=ShellRequest(command=command))
    output, end = b"", None
    for frame in shell.frames():
        output += frame.payload if frame.kind is FrameKind.OUTPUT else b""
        end = SHELL_END.validate_json(frame.payload) if frame.kind is FrameKind.END else end
    shell.close()
    return output, end


@pytest.fixture
def job(bench: Bench) -> str:
    bench.create("runs", WAIT, enableWebAccess=True)
    bench.step_until_state("runs", JobState.RUNNING)
    return "runs"


def test_a_command_runs_in_a_replica_and_is_recorded(bench: Bench, service: Served, job: str) -> None:
    output, end = _run(_client(service), "/bin/sh", "-c", "echo secret in $TF_CONFIG | cut -c 1-14; exit 4")
    assert output == b'secret in {"cl' or output.startswith(b"secret in ")
    assert end == ShellEnd(exit_code=4)
    (noted,) = [event for event in bench.store.events(bench.job(job).uid) if event.kind == "exec"]
    assert noted.detail == "home started '/bin/sh' in master-replica-0"
    assert noted.state == "RUNNING"


def test_large_output_comes_whole(service: Served, job: str) -> None:
    output, end = _run(_client(service), "seq", "200000")
    assert output.split() == [str(number).encode() for number in range(1, 200_001)]
    assert end == ShellEnd(exit_code=0)


def test_who_hangs_up_leaves_nothing_behind(service: Served, job: str) -> None:
    request = ShellRequest(command=("/bin/sh", "-c", "echo $$; sleep 600"))
    shell = _client(service).open_shell(job, replica=MASTER, request=request)
    pid = int(next(shell.frames()).payload)
    shell.close()
    deadline = time.monotonic() + 20
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_the_jobs_owner_alone_gets_one(bench: Bench, service: Served, job: str) -> None:
    ann = _client(service, service.key(Scope.SUBMITTER, project="local"))
    with pytest.raises(PermissionDeniedError, match=r"job runs is home's: only its submitter may open shells"):
        _run(ann, "true")
    bench.store.update(bench.job(job).uid, submitted_by="ann")
    assert _run(ann, "true")[1] == ShellEnd(exit_code=0)
    with pytest.raises(PermissionDeniedError, match="job runs is ann's"):
        _run(_client(service), "true")


def test_a_key_that_may_not_submit_or_is_for_another_project_gets_none(service: Served, job: str) -> None:
    for key in (service.key(Scope.VIEWER), service.key(Scope.OPERATOR, project="other"), "wrong"):
        with pytest.raises(PermissionDeniedError, match="the service refuses this key"):
            _run(_client(service, key), "true")


@pytest.mark.parametrize(
    ("made", "replica", "kind", "message"),
    [
        ({"enableWebAccess": True}, "worker-replica-3", NotFoundError, "allowed: master-replica-0"),
        ({}, MASTER, InvalidInputError, "does not allow shells; submit it with trainingInput.enableWebAccess"),
    ],
    ids=["replica", "not-enabled"],
)
def test_where_there_is_none_the_reason_is_said(
    bench: Bench, service: Served, made: dict[str, Any], replica: str, kind: type[LockstepError], message: str
) -> None:
    bench.create("other", WAIT, **made)
    bench.step_until_state("other", JobState.RUNNING)
    with pytest.raises(kind, match=message):
        _run(_client(service), "true", job="other", replica=replica)
    with pytest.raises(NotFoundError):
        _run(_client(service), "true", job="absent")


def test_a_job_that_waits_takes_none(bench: Bench, service: Served) -> None:
    bench.create("waits", WAIT, enableWebAccess=True)
    with pytest.raises(WrongStateError, match="job waits is QUEUED: only a running job allows shells"):
        _run(_client(service), "true", job="waits")
    assert "webAccessUris" not in job_resource(bench.job("waits"))["trainingOutput"]


def test_so_many_at_once_and_no_more(service: Served, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_route, "_open", shell_route.threading.Semaphore(1))
    client = _client(service)
    first = client.open_shell(job, replica=MASTER, request=ShellRequest(command=("cat",)))
    with pytest.raises(OverloadedError):
        _run(client, "true")
    first.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert _run(client, "true")[1] == ShellEnd(exit_code=0)
            return
        except OverloadedError:
            assert time.monotonic() < deadline


def test_a_replica_that_takes_none_any_more_says_so(bench: Bench, service: Served, job: str) -> None:
    bench.cluster.forget(f"{bench.job(job).uid}-0")
    _, end = _run(_client(service), "true")
    assert end is not None
    assert "accepts no shells now" in (end.problem or "")


def test_what_cannot_be_recorded_is_not_started_and_left_open_nowhere(
    bench: Bench, service: Served, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    open_shell = bench.cluster.open_shell

    def open_and_keep(gang_id: str, *, replica: str) -> AbstractShell:
        opened.append(open_shell(gang_id, replica=replica))
        return opened[-1]

    def refuse(_self: JobStore, _uid: str, **_event: str) -> None:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    monkeypatch.setattr(bench.cluster, "open_shell", open_and_keep)
    monkeypatch.setattr(JobStore, "record_event", refuse)
    _, end = _run(_client(service), "true")
    assert end is not None
    assert end.problem == "the database cannot be used: database is locked; try again"
    assert [shell._socket.fileno() for shell in opened] == [-1]


def test_the_jobs_replicas_say_where_their_shells_are(bench: Bench, service: Served, job: str) -> None:
    jobs = service.google().jobs()
    (listed,) = jobs.list(parent="projects/local").execute()["jobs"]
    for found in (jobs.get(name=f"projects/local/jobs/{job}").execute(), listed):
        uris = found["trainingOutput"]["webAccessUris"]
        assert uris == {MASTER: f"/v1/projects/local/jobs/{job}/replicas/{MASTER}:exec"}


def test_no_service_no_shell(service: Served, job: str) -> None:
    client = _client(service)
    service.close()
    with pytest.raises(UnavailableError, match="does not respond"):
        _run(client, "true")


class Breaking(AbstractShell):
    """A shell whose output ends with an error of the engine."""

    def __init__(self) -> None:
        self.is_closed = False

    def send(self, data: bytes) -> None: ...

    def receive(self, *, timeout_s: float) -> bytes | None:
        raise EngineError("the engine does not answer")

    def close(self) -> None:
        self.is_closed = True


def test_an_engine_that_goes_away_is_said_before_the_end(
    bench: Bench, service: Served, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Breaking()
    monkeypatch.setattr(bench.cluster, "open_shell", lambda *_, **__: broken)
    _, end = _run(_client(service), "true")
    assert end == ShellEnd(problem="the engine does not answer")
    assert broken.is_closed


class Ended(AbstractShell):
    """A shell whose command has ended, and takes no input any more, before its last output was received."""

    def __init__(self) -> None:
        self.refused = threading.Event()
        self.closed = threading.Event()
        self.left = [b"", encode_frame(FrameKind.END, SHELL_END.dump_json(ShellEnd(exit_code=4)))]

    def send(self, data: bytes) -> None:
        if self.refused.is_set() or FrameReader().feed(data)[0].kind is not FrameKind.START:
            self.refused.set()
            raise UnavailableError("the shell accepts no input: Broken pipe")

    def receive(self, *, timeout_s: float) -> bytes | None:
        assert self.refused.wait(30), "the input comes first"
        time.sleep(0.2)  # time for who carries the input to do something wrong
        return self.left.pop(0) if self.left and not self.closed.is_set() else None

    def close(self) -> None:
        self.closed.set()


def test_input_for_a_command_that_has_ended_does_not_take_its_exit_code(
    bench: Bench, service: Served, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.cluster, "open_shell", lambda *_, **__: Ended())
    shell = _client(service).open_shell(job, replica=MASTER, request=ShellRequest(command=("true",)))
    shell.send(FrameKind.INPUT_END)
    (frame,) = shell.frames()
    assert SHELL_END.validate_json(frame.payload) == ShellEnd(exit_code=4)
    shell.close()


class Endless(AbstractShell):
    """A shell that prints until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def send(self, data: bytes) -> None: ...

    def receive(self, *, timeout_s: float) -> bytes | None:
        return None if self.closed.is_set() else encode_frame(FrameKind.OUTPUT, b"y\n" * 10_000)

    def close(self) -> None:
        self.closed.set()


def test_who_hangs_up_amid_output_is_no_error_of_the_service(
    bench: Bench, service: Served, job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endless = Endless()
    monkeypatch.setattr(bench.cluster, "open_shell", lambda *_, **__: endless)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    shell = _client(service).open_shell(job, replica=MASTER, request=ShellRequest(command=("yes",)))
    next(shell.frames())
    shell.close()
    assert endless.closed.wait(20)
    service.close()  # which waits for what is open
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
