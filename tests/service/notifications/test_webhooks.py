"""Webhooks over real HTTP: servers that fail, hang and come back, and a service that is killed in between."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.receiver import TIMEOUT_S, Receiver

from lockstep.errors import ConfigError
from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.notifications.webhooks import MAX_AGE_S, Webhook
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.__main__ import start_log
from lockstep.service.notifications import webhooks as webhooks_module
from lockstep.service.notifications.webhooks import RETRY_S, HookSender, Webhooks, open_webhooks, read_secret
from lockstep.service.store import SpendingStore, WebhookStore, open_database
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def restored_log() -> Iterator[None]:
    logger = logging.getLogger("httpx")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture
def store(bench: Bench) -> Iterator[WebhookStore]:
    database = open_database(f"sqlite:///{bench.home.database}")
    yield WebhookStore(database)
    database.dispose()


def _sender(receiver: Receiver, store: WebhookStore, **options: Any) -> HookSender:
    hook = Webhook(name=options.pop("name", "ops"), url=receiver.url, **options.pop("hook", {}))
    made = HookSender(hook, secret=options.pop("secret", None), store=store, **options)
    made.begin()
    return made


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _told(receiver: Receiver) -> list[tuple[str, str]]:
    return [(message["job"], message["state"]) for message in receiver.taken]


def _move(bench: Bench, job_id: str, *kinds: JobEvent) -> None:
    for kind in kinds:
        bench.store.advance(bench.job(job_id).uid, kind, detail="because")


def test_a_hook_is_told_what_happens_from_its_beginning_on(
    bench: Bench, receiver: Receiver, store: WebhookStore
) -> None:
    bench.create("before", "pass")
    sender = _sender(receiver, store, secret=b"key")
    bench.create("after", "pass")
    bench.store.note(bench.job("after").uid, kind="exec", detail="no change of state")
    _move(bench, "after", JobEvent.PREPARING, JobEvent.STARTED)
    sender.step()
    assert _told(receiver) == [("after", "QUEUED"), ("after", "PREPARING"), ("after", "RUNNING")]
    assert receiver.taken[1]["detail"] == "because"
    assert receiver.headers[1]["lockstep-signature"].startswith("sha256=")
    assert receiver.headers[1]["lockstep-delivery"] == f"ops-{receiver.taken[1]['seq']}"
    sender.step()
    assert len(receiver.taken) == 3
    assert sender.state.problem is None


def test_each_is_told_what_it_wants_alone(bench: Bench, receiver: Receiver, store: WebhookStore) -> None:
    sender = _sender(receiver, store, hook={"states": (JobState.RUNNING,)})
    bench.create("job", "pass")
    _move(bench, "job", JobEvent.PREPARING, JobEvent.STARTED, JobEvent.SUCCEEDED)
    sender.step()
    assert _told(receiver) == [("job", "RUNNING")]
    assert store.events_after(store.cursor("ops"), limit=9) == [], "what it does not want it is past as well"


def test_an_alert_of_a_budget_is_told_once_to_those_who_want_it(
    bench: Bench, receiver: Receiver, store: WebhookStore
) -> None:
    database = open_database(f"sqlite:///{bench.home.database}")
    alerts = SpendingStore(database)
    alert = Alert(project="vision", period="2026-11-22", share="0.9", limit_usd="40.00")
    assert alerts.raise_alert(alert, text="before", time_s=time.time())
    hooks = {"all": {}, "others": {"projects": ("nlp",)}, "jobs": {"budgets": False}}
    senders = [_sender(receiver, store, name=name, hook=hook) for name, hook in hooks.items()]
    assert not alerts.raise_alert(alert, text="again", time_s=time.time())
    assert alerts.raise_alert(replace(alert, share="1"), text="all is spent", time_s=time.time())
    bench.create("job", "pass")
    for sender in (*senders, *senders):
        sender.step()
    database.dispose()
    assert [message["event"] for message in receiver.taken] == ["enqueued", "budget", "enqueued"]
    told = receiver.taken[1]
    assert (told["share"], told["limitUsd"], told["detail"]) == ("1", "40.00", "all is spent")
    assert receiver.headers[1]["lockstep-delivery"] == f"all-budget-{told['seq']}"
    assert "job" not in told


@pytest.mark.parametrize("status", [500, 404, 302])
def test_what_fails_is_told_again_in_order_with_growing_pauses(
    bench: Bench, receiver: Receiver, store: WebhookStore, status: int
) -> None:
    sender = _sender(receiver, store)
    bench.create("job", "pass")
    _move(bench, "job", JobEvent.PREPARING)
    receiver.status = status
    assert [sender.step() for _ in range(len(RETRY_S) + 1)] == [*RETRY_S, RETRY_S[-1]]
    assert sender.state.problem == f"it answered {status}"
    assert sender.state.since_s is not None
    receiver.status = 200
    sender.step()
    assert _told(receiver) == [("job", "QUEUED"), ("job", "PREPARING")]
    assert sender.state.problem is None
    receiver.status = status
    _move(bench, "job", JobEvent.STARTED)
    assert sender.step() == RETRY_S[0]


def test_what_is_too_old_is_told_no_more(bench: Bench, receiver: Receiver, store: WebhookStore) -> None:
    now_s = [time.time()]
    sender = _sender(receiver, store, clock=lambda: now_s[0])
    bench.create("old", "pass")
    receiver.status = 500
    sender.step()
    now_s[0] += MAX_AGE_S + 1
    receiver.status = 200
    sender.step()
    assert receiver.taken == []
    assert store.events_after(store.cursor("ops"), limit=9) == []


def test_one_that_is_not_there_is_named_without_its_url(bench: Bench, receiver: Receiver, store: WebhookStore) -> None:
    sender = _sender(receiver, store)
    bench.create("job", "pass")
    receiver.close()
    assert sender.step() == RETRY_S[0]
    assert sender.state.problem == "ConnectError"
    assert "secret" not in repr(sender.state)


def test_the_services_log_has_no_urls(receiver: Receiver, caplog: pytest.LogCaptureFixture, restored_log: None) -> None:
    start_log()
    with caplog.at_level(logging.INFO):
        assert webhooks_module.post(receiver.url, b"{}", {}) is None
    assert "in-the-url" not in caplog.text


@pytest.mark.parametrize("host", ["a..b", "xn--", "a" * 80])
def test_a_host_that_cannot_be_named_is_a_failure_like_others(host: str) -> None:
    assert "Error" in (webhooks_module.post(f"https://{host}/hook", b"", {}) or "")


def test_certificates_that_are_not_there_are_a_failure_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    assert webhooks_module.post("https://127.0.0.1:1/hook", b"", {}) == "FileNotFoundError"


def test_a_pass_that_fails_is_not_the_last_one(
    bench: Bench, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "POLL_S", 0.01)
    sender = _sender(receiver, store)
    bench.create("job", "pass")
    failures = [RuntimeError("what nobody thought of")]

    settled = webhooks_module.settled

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return settled(*arguments, **options)

    monkeypatch.setattr(webhooks_module, "settled", fail_once)
    stop = threading.Event()
    telling = threading.Thread(target=sender.run, args=(stop,), kwargs={"is_mine": lambda: True}, daemon=True)
    telling.start()
    _until(lambda: _told(receiver) == [("job", "QUEUED")] or not telling.is_alive())
    stop.set()
    telling.join(TIMEOUT_S)
    assert _told(receiver) == [("job", "QUEUED")]


def test_one_that_never_answers_holds_up_no_other(
    bench: Bench, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "POLL_S", 0.01)
    hanging = Receiver()
    hanging.hangs.set()
    stop = threading.Event()
    hooks = Webhooks([_sender(hanging, store, name="hangs"), _sender(receiver, store, name="well")])
    hooks.start(stop, is_mine=lambda: True)
    for number in range(3):
        bench.create(f"job_{number}", "pass")
    _until(lambda: len(receiver.taken) == 3 and hanging.num_asked == 1)
    hanging.close()
    _until(lambda: any(hook["problem"] for hook in hooks.describe()))
    stop.set()
    hooks.join()
    (broken, well) = hooks.describe()
    assert broken["place"] == f"http://127.0.0.1:{hanging.server.server_port}"
    assert well["problem"] is None


def test_a_service_that_stands_by_tells_nobody(
    bench: Bench, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "POLL_S", 0.01)
    stop, is_mine, asked = threading.Event(), threading.Event(), threading.Event()

    def look() -> bool:
        asked.set()
        return is_mine.is_set()

    hooks = Webhooks([_sender(receiver, store)])
    hooks.start(stop, is_mine=look)
    bench.create("job", "pass")
    for _ in range(3):
        asked.clear()
        assert asked.wait(TIMEOUT_S)
    assert receiver.num_asked == 0
    is_mine.set()
    _until(lambda: _told(receiver) == [("job", "QUEUED")])
    stop.set()
    hooks.join()


SERVICE = """
import sys, threading
from pathlib import Path
from lockstep.service.notifications import webhooks
from lockstep.service.store import WebhookStore, open_database
webhooks.POLL_S = 0.01
hooks = webhooks.open_webhooks(Path(sys.argv[2]), store=WebhookStore(open_database(sys.argv[1])))
hooks.start(threading.Event(), is_mine=lambda: True)
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_service_loses_nothing_and_keeps_the_order(bench: Bench, receiver: Receiver, tmp_path: Path) -> None:
    config = tmp_path / "hooks.yaml"
    config.write_text(json.dumps({"webhooks": {"ops": {"url": receiver.url}}}))
    command = [sys.executable, "-c", SERVICE, f"sqlite:///{bench.home.database}", str(config)]
    states = ("QUEUED", "PREPARING", "RUNNING", "SUCCEEDED")
    expected = [(name, state) for name in ("hung", "hung_too", "last") for state in states]

    def run_service(job_id: str, until: Callable[[], object]) -> None:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
            assert service.stdout is not None
            assert service.stdout.readline() == b"up\n"
            bench.create(job_id, "pass")
            _move(bench, job_id, JobEvent.PREPARING, JobEvent.STARTED, JobEvent.SUCCEEDED)
            _until(until)
            service.send_signal(signal.SIGKILL)

    receiver.hangs.set()
    run_service("hung", lambda: receiver.num_asked == 1)  # killed while it waits for an answer
    run_service("hung_too", lambda: receiver.num_asked == 2)
    receiver.goes_on.set()
    receiver.hangs.clear()
    run_service("last", lambda: expected[-1] in _told(receiver))
    assert list(dict.fromkeys(_told(receiver))) == expected


def test_status_says_how_hooks_are(bench: Bench, service: Served) -> None:
    assert service.http.get("/v1/service").json()["webhooks"] == []


def test_a_secret_that_cannot_be_read_is_said_at_the_start(tmp_path: Path, store: WebhookStore) -> None:
    hook = {"url": "https://hooks.example.com", "secretFile": "hook.key"}
    config = tmp_path / "hooks.yaml"
    config.write_text(json.dumps({"webhooks": {"ops": hook}}))
    with pytest.raises(ConfigError, match=r"webhook ops: its secret's file .*hook.key cannot be read"):
        open_webhooks(config, store=store)
    (tmp_path / "hook.key").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        open_webhooks(config, store=store)
    (tmp_path / "hook.key").write_text("key\n")
    (tmp_path / "hook.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"everybody can read .*hook\.key; chmod 600"):
        open_webhooks(tmp_path / "hooks.yaml", store=store)
    (tmp_path / "hook.key").chmod(0o600)
    open_webhooks(config, store=store)
    assert read_secret(Webhook(name="a", url="https://x", secret_file=tmp_path / "hook.key")) == b"key"
    assert open_webhooks(None, store=store).describe() == []
