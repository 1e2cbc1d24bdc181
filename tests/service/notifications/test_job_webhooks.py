"""Webhooks that jobs name: over the REST interface, to a real receiver, by a service that is killed in between."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.postgres import PASSWORD, Server
from tests.service.receiver import TIMEOUT_S, Receiver

from lockstep.cli.summary import print_summary
from lockstep.home import Home
from lockstep.jobs.notifications.job_webhooks import JobWebhook
from lockstep.jobs.notifications.webhooks import MAX_AGE_S
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.notifications import webhooks as module
from lockstep.service.notifications.posting import RestrictedPost
from lockstep.service.notifications.webhooks import (
    NUM_THREADS,
    NUM_THREADS_OF_PROJECT,
    RETRY_S,
    Webhooks,
    choose,
    seal_webhooks,
)
from lockstep.service.settings import Settings
from lockstep.service.store import Feed, JobStore, WebhookRecord, WebhookStore, open_database
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.served import Served

JOBS = "/v1/projects/local/jobs"
HIDDEN = "in-the-url"
KEY = b"a key of the project, 24"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    home = Home(path=tmp_path)
    with open_bench(Settings(home=home, bucket=str(home.bucket), allow_webhooks_to=("127.0.0.0/8",))) as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def store(bench: Bench) -> Iterator[WebhookStore]:
    database = open_database(f"sqlite:///{bench.home.database}")
    yield WebhookStore(database)
    database.dispose()


def _sender(bench: Bench, store: WebhookStore, clock: Callable[[], float] = time.time) -> Webhooks:
    post = RestrictedPost(bench.settings.webhook_targets)
    return Webhooks({}, store=store, vault=bench.vault, restricted_post=post, clock=clock)


def _submit(
    service: Served, job_id: str, *hooks: dict[str, Any], project: str = "local", query: str = ""
) -> httpx.Response:
    body = {"jobId": job_id, "trainingInput": {"pythonModule": "train", "lockstep": {"webhooks": hooks}}}
    return service.http.post(f"/v1/projects/{project}/jobs{query}", json=body)


def _created(service: Served, job_id: str, *hooks: dict[str, Any], project: str = "local") -> None:
    answer = _submit(service, job_id, *hooks, project=project)
    assert answer.status_code == 200, answer.text


def _move(bench: Bench, job_id: str, *kinds: JobEvent, project: str = "local") -> None:
    uid = bench.store.get(project=project, job_id=job_id).uid
    for kind in kinds:
        bench.store.advance(uid, kind, detail="because")


def _told(receiver: Receiver) -> list[tuple[str, str]]:
    return [(message["job"], message["state"]) for message in receiver.taken]


def _tell_all(sender: Webhooks, store: WebhookStore, *, now_s: float | None = None) -> None:
    for hook in store.due_of_jobs(time.time() if now_s is None else now_s, without=(), limit=100):
        sender.deliver(hook)


def _shown(service: Served, job_id: str) -> dict[str, Any]:
    return service.http.get(f"{JOBS}/{job_id}").json()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_tells_its_own_in_order_and_signed_and_each_of_its_states_alone(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore
) -> None:
    bench.vault.put(project="local", name="hook-key", value=SECRET, principal_label="ann")
    hook = {"url": receiver.url, "secret": "hook-key"}
    _created(service, "told", hook)
    assert _submit(service, "told", hook, hook).status_code == 409
    assert len(store.due_of_jobs(time.time(), without=(), limit=9)) == 1, (
        "hooks are recorded with their job, or not at all"
    )
    _created(service, "other")
    _move(bench, "told", JobEvent.PREPARING, JobEvent.STARTED)
    sender = _sender(bench, store)
    _tell_all(sender, store)
    uid = bench.job("told").uid
    bench.store.record_event(uid, kind="exec", detail="no change of state")
    assert store.due_of_jobs(time.time(), without=(), limit=9) == []
    _move(bench, "told", JobEvent.SUCCEEDED)
    _tell_all(sender, store)
    assert _told(receiver) == [("told", state) for state in ("QUEUED", "PREPARING", "RUNNING", "SUCCEEDED")]
    message, headers = receiver.taken[-1], receiver.headers[-1]
    assert headers["webhook-id"] == f"{uid}-0-{message['seq']}"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{json.dumps(message, sort_keys=True)}"
    digest = base64.b64encode(hmac.digest(KEY, signed.encode(), hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert [hook.next_time_s for hook in store.of_job(uid)] == [None], "its end was told: it is looked at no more"
    receiver.taken.clear()
    _created(service, "some", {"url": receiver.url, "states": ["FAILED"]}, {"url": receiver.url, "states": ["RUNNING"]})
    _move(bench, "some", JobEvent.PREPARING, JobEvent.STARTED, JobEvent.FAILED)
    _tell_all(sender, store)
    assert sorted(_told(receiver)) == [("some", "FAILED"), ("some", "RUNNING")]
    assert store.due_of_jobs(time.time(), without=(), limit=9) == []


def test_path_and_query_are_shown_to_nobody(bench: Bench, service: Served, receiver: Receiver) -> None:
    hook = {"url": receiver.url, "states": ["FAILED"]}
    answers = [_submit(service, "tried", hook, query="?validateOnly=true"), _submit(service, "job", hook)]
    etag = answers[1].json()["etag"]
    answers.append(service.http.patch(f"{JOBS}/job?updateMask=labels", json={"labels": {"a": "b"}, "etag": etag}))
    answers.append(_submit(service, "job", hook))
    viewer = service.client(service.key(Scope.VIEWER, project="local"))
    answers += [viewer.get(f"{JOBS}{path}") for path in ("", "/job", "/job/events")]
    answers.append(viewer.get(JOBS, params={"filter": f"trainingInput.lockstep.webhooks:{HIDDEN}"}))
    assert [answer.status_code for answer in answers[:-1]] == [200, 200, 200, 409, 200, 200, 200]
    assert HIDDEN in receiver.url
    for answer in answers:
        assert "/hook" not in answer.text
    assert HIDDEN not in "".join(answer.text for answer in answers[:-1])
    assert answers[-1].json() == {"jobs": []}, "a filter cannot guess it either"
    shown = answers[5].json()
    assert shown["trainingInput"]["lockstep"]["webhooks"] == [
        {"url": f"http://127.0.0.1:{receiver.server.server_port}/***", "states": ["FAILED"]}
    ]
    holding = [path for path in bench.home.path.rglob("*") if path.is_file() and HIDDEN.encode() in path.read_bytes()]
    assert holding == [], "a copy of the database tells nothing"
    again = service.http.post(JOBS, json={**shown, "jobId": "again"})
    assert (again.status_code, "give the whole URL" in again.text) == (400, True)


REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    (
        [{"url": "https://h.example", "secret": "theirs"}],  # which is another project's
        "trainingInput.lockstep.webhooks[0].secret: project local has no secret 'theirs'",
    ),
    (
        [{"url": "https://h.example"}, {"url": "https://h.example", "secret": "none"}],
        "trainingInput.lockstep.webhooks[1].secret: project local has no secret 'none'",
    ),
    (
        [{"url": "https://10.0.0.3/in-the-url"}],
        "trainingInput.lockstep.webhooks[0].url: this service does not send jobs' webhooks to https://10.0.0.3",
    ),
    (
        [{"url": "https://me:in-the-url@h.example"}],
        "trainingInput.lockstep.webhooks[0].url; allowed: an https:// URL without a user name",
    ),
    ([{"url": "https://h.example"}] * 9, "at most 8 webhooks, not 9"),
    ([{"url": f"https://h.example/in-the-url{'x' * 2048}"}], "at most 2048 ASCII"),
]


def test_what_cannot_be_told_is_refused_by_name(bench: Bench, service: Served) -> None:
    bench.vault.put(project="other", name="theirs", value=SECRET, principal_label="bob")
    for hooks, message in REFUSED:
        refused = _submit(service, "job", *hooks)
        assert refused.status_code == 400
        assert message in refused.json()["error"]["message"]
        assert HIDDEN not in refused.text
        tried = _submit(service, "job", *hooks, query="?validateOnly=true")
        assert message in (tried.json().get("problem") or tried.json()["error"]["message"])
        assert HIDDEN not in tried.text


def test_who_does_not_take_it_is_asked_again_and_named(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    sender = _sender(bench, store, clock)
    _created(service, "job", {"url": receiver.url})
    _move(bench, "job", JobEvent.PREPARING)
    clock.now_s = time.time()
    receiver.status = 500
    for pause_s in (*RETRY_S, RETRY_S[-1]):
        _tell_all(sender, store, now_s=clock.now_s)
        assert store.due_of_jobs(clock.now_s + pause_s - 0.01, without=(), limit=9) == []
        clock.now_s += pause_s
    assert receiver.num_asked == len(RETRY_S) + 1
    shown = _shown(service, "job")
    (hook,) = shown["lockstep"]["webhooks"]
    place = f"http://127.0.0.1:{receiver.server.server_port}"
    assert hook == {"place": place, "problem": "it answered 500", "since": hook["since"], "numDropped": 0}
    print_summary(shown, [], models=[])
    assert f"webhook {place}: not notified since " in capsys.readouterr().out
    receiver.status = 204
    _tell_all(sender, store, now_s=clock.now_s)
    assert _told(receiver) == [("job", "QUEUED"), ("job", "PREPARING")]
    assert _shown(service, "job")["lockstep"]["webhooks"] == [{**hook, "problem": None, "since": None}]
    assert _shown(service, "job")["etag"] == shown["etag"], "what hooks do is no change of the job"


def test_what_is_too_old_is_told_no_more_and_counted(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    _created(service, "job", {"url": receiver.url})
    _move(bench, "job", JobEvent.PREPARING)
    clock.now_s += MAX_AGE_S + 60
    _tell_all(_sender(bench, store, clock), store, now_s=clock.now_s)
    assert receiver.num_asked == 0
    shown = _shown(service, "job")
    assert [hook["numDropped"] for hook in shown["lockstep"]["webhooks"]] == [2]
    print_summary(shown, [], models=[])
    assert "2 state changes never delivered" in capsys.readouterr().out


def test_nothing_is_sent_unsigned_where_the_secret_is_gone_or_sealed_with_another_key(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore
) -> None:
    bench.vault.put(project="local", name="hook-key", value=SECRET, principal_label="ann")
    _created(service, "job", {"url": receiver.url, "secret": "hook-key"})
    bench.vault.remove(project="local", name="hook-key")
    sender = _sender(bench, store)
    _tell_all(sender, store)
    assert receiver.num_asked == 0
    (hook,) = _shown(service, "job")["lockstep"]["webhooks"]
    assert hook["problem"].startswith("project local has no secret 'hook-key'")
    bench.vault.put(project="local", name="hook-key", value=SECRET, principal_label="ann")
    _tell_all(sender, store, now_s=time.time() + RETRY_S[0])
    assert _told(receiver) == [("job", "QUEUED")]
    assert "webhook-signature" in receiver.headers[0]
    bench.home.secret_key.write_bytes(b"k" * 32)
    _move(bench, "job", JobEvent.PREPARING)
    _tell_all(sender, store)
    assert receiver.num_asked == 1
    (hook,) = _shown(service, "job")["lockstep"]["webhooks"]
    assert "was not encrypted with this service's secrets key" in hook["problem"]


def test_postgresql_has_them_too(postgres: Server, bench: Bench) -> None:
    database = open_database(postgres.url(postgres.create_database_with_tables()), password=PASSWORD)
    store, jobs = WebhookStore(database), JobStore(database)
    hook = JobWebhook(url="https://h.example/x", secret="k", states=(JobState.FAILED,))
    try:
        (new,) = seal_webhooks([hook], project="local", vault=bench.vault)
        values: dict[str, Any] = {"training_input": {}, "labels": {}, "simulated": False, "outputs": {}}
        job = jobs.create(project="local", job_id="j", webhooks=[new], **values)
        (due,) = store.due_of_jobs(time.time(), without=["other"], limit=9)
        assert (due.sealed, due.display_url, due.secret, due.states) == (
            new.sealed,
            new.display_url,
            "k",
            (JobState.FAILED,),
        )
        assert store.due_of_jobs(time.time(), without=["local"], limit=9) == []
        (event,) = store.events_for(due, limit=9)
        store.save(replace(due, seq=event.seq, next_time_s=None))
        assert [told.seq for told in store.of_job(job.uid)] == [event.seq]
        assert store.due_of_jobs(time.time(), without=(), limit=9) == []
    finally:
        database.dispose()


def test_a_secret_that_is_no_key_is_refused_at_submission(bench: Bench, service: Served) -> None:
    bench.vault.put(project="local", name="plain", value="a plain secret", principal_label="ann")
    refused = _submit(service, "job", {"url": "https://h.example", "secret": "plain"})
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.startswith("trainingInput.lockstep.webhooks[0].secret: the secret 'plain'; allowed: whsec_ and ")
    assert "a plain secret" not in message


def _record(number: int, project: str | None) -> WebhookRecord:
    return WebhookRecord(
        name=f"{project}-{number}",
        feed=Feed.JOB,
        job_uid=project,
        project=project,
        sealed=b"",
        display_url="https://h",
        secret=None,
        states=(),
        seq=0,
        num_failures=0,
        num_dropped=0,
        next_time_s=0.0,
        problem=None,
        since_s=None,
    )


def test_a_project_has_a_share_of_the_threads_alone() -> None:
    busy_one = _record(0, "a")
    due = [*(_record(number, "a") for number in range(20)), _record(0, "b"), *(_record(n, "c") for n in range(9))]
    chosen = choose(due, busy={busy_one.key: "a"})
    names = [hook.name for hook in chosen]
    assert names == ["a-1", "a-2", "a-3", "b-0", "c-0", "c-1", "c-2", "c-3"]
    busy: dict[tuple[str, str], str | None] = {
        (f"{project}-{number}", "job"): project for project in "xyz" for number in range(4)
    }
    assert len(busy) == NUM_THREADS
    assert choose(due, busy=busy) == []
    operators = [_record(number, None) for number in range(20)]
    assert choose([*due, *operators], busy=busy) == operators, "those of the operator have threads beside them"


def test_hooks_that_hang_hold_up_neither_jobs_nor_other_projects(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.02)
    monkeypatch.setattr(module, "PAGE_SIZE", NUM_THREADS + 1)  # less than what hangs
    hanging = Receiver()
    hanging.hangs.set()
    stop = threading.Event()
    hooks = _sender(bench, store)
    for number in range(2):
        _created(service, f"hangs_{number}", *[{"url": hanging.url}] * 8)
    hooks.start(stop, has_lease=lambda: True)
    try:
        _until(lambda: hanging.num_asked == NUM_THREADS_OF_PROJECT)
        _created(service, "well", {"url": receiver.url}, project="other")
        _move(bench, "well", JobEvent.PREPARING, project="other")
        _until(lambda: _told(receiver) == [("well", "QUEUED"), ("well", "PREPARING")])
        assert hanging.num_asked == NUM_THREADS_OF_PROJECT
    finally:
        stop.set()
        hanging.close()
        hooks.join()


def test_a_service_that_stands_by_tells_nobody(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    stop, has_lease, asked = threading.Event(), threading.Event(), threading.Event()

    def look() -> bool:
        asked.set()
        return has_lease.is_set()

    hooks = _sender(bench, store)
    _created(service, "job", {"url": receiver.url})
    hooks.start(stop, has_lease=look)
    for _ in range(3):
        asked.clear()
        assert asked.wait(TIMEOUT_S)
    assert receiver.num_asked == 0
    has_lease.set()
    _until(lambda: _told(receiver) == [("job", "QUEUED")])
    stop.set()
    hooks.join()


def test_what_fails_is_not_the_last_one(
    bench: Bench, service: Served, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "FAULT_PAUSE_S", 0.01)
    failures = {"due_of_jobs": [RuntimeError("a look")], "events_for": [RuntimeError("a telling")]}

    class Failing:
        def __getattr__(self, name: str) -> Any:
            if failures.get(name):
                raise failures[name].pop()
            return getattr(store, name)

    failing: Any = Failing()
    hooks = _sender(bench, failing)
    _created(service, "job", {"url": receiver.url})
    stop = threading.Event()
    hooks.start(stop, has_lease=lambda: True)
    _until(lambda: _told(receiver) == [("job", "QUEUED")])
    stop.set()
    hooks.join()
    assert failures == {"due_of_jobs": [], "events_for": []}


SERVICE = """
import sys, threading
from pathlib import Path
from lockstep.jobs.notifications.webhook_targets import parse_targets
from lockstep.service.notifications import webhooks
from lockstep.service.notifications.posting import RestrictedPost
from lockstep.service.store import WebhookStore, SecretStore, open_database
from lockstep.service.security.vault import Vault
webhooks.POLL_S = 0.01
database = open_database(sys.argv[1])
store = WebhookStore(database)
vault = Vault(store=SecretStore(database), key_path=Path(sys.argv[2]))
post = RestrictedPost(parse_targets(["127.0.0.1"], is_local=True))
webhooks.Webhooks({}, store=store, vault=vault, restricted_post=post).start(threading.Event(), has_lease=lambda: True)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.heavy
def test_a_killed_service_loses_nothing_and_keeps_the_order_of_each_job(
    bench: Bench, service: Served, receiver: Receiver
) -> None:
    command = [sys.executable, "-c", SERVICE, f"sqlite:///{bench.home.database}", str(bench.home.secret_key)]
    states = ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]

    def run_service(until: Callable[[], object], job_id: str) -> None:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            _created(service, job_id, {"url": receiver.url})
            _move(bench, job_id, JobEvent.PREPARING, JobEvent.STARTED, JobEvent.SUCCEEDED)
            _until(until)
            process.send_signal(signal.SIGKILL)

    receiver.hangs.set()
    run_service(lambda: receiver.num_asked == 1, "hung")  # killed while it waits for an answer
    receiver.goes_on.set()
    receiver.hangs.clear()
    run_service(lambda: {("hung", "SUCCEEDED"), ("last", "SUCCEEDED")} <= set(_told(receiver)), "last")
    for job_id in ("hung", "last"):
        told = [state for name, state in _told(receiver) if name == job_id]
        assert list(dict.fromkeys(told)) == states
        assert told[: len(states)] == states
