"""The operator's webhooks over real HTTP: servers that fail, hang and recover, and a service that is killed."""

from __future__ import annotations

import base64
import hashlib
import hmac
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

import httpx
import pytest
from tests.service.receiver import TIMEOUT_S, Receiver

from lockstep.errors import ConfigError
from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.notifications.webhooks import MAX_AGE_S, Webhook
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.__main__ import start_log
from lockstep.service.notifications import webhooks as webhooks_module
from lockstep.service.notifications.posting import RestrictedPost, post
from lockstep.service.notifications.webhooks import RETRY_S, Operators, Webhooks, WebhookState, read_webhooks
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


KEY = b"k" * 24


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset_s


class Hooks:
    """Webhooks of the operator, whose queues are served when a test says so."""

    def __init__(self, bench: Bench, store: WebhookStore, operators: Operators) -> None:
        self.store, self.names, self.clock = store, list(operators), Clock()
        post = RestrictedPost(bench.settings.webhook_targets)
        self.all = Webhooks(operators, store=store, vault=bench.vault, restricted_post=post, clock=self.clock)
        for name in operators:
            store.register(name, now_s=self.clock())

    def step(self) -> None:
        for queue in self.store.due(self.clock(), names=self.names):
            self.all.deliver(queue)

    def is_done(self) -> bool:
        return not self.store.due(self.clock() + max(RETRY_S), names=self.names)

    @property
    def problem(self) -> str | None:
        return self.states()[0].problem

    def states(self) -> list[WebhookState]:
        self.all.refresh()
        return self.all.states()


def _operators(receiver: Receiver, name: str = "ops", *, key: bytes | None = None, **options: Any) -> Operators:
    return {name: (Webhook(name=name, url=receiver.url, **options), key)}


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
    hooks = Hooks(bench, store, _operators(receiver, key=KEY))
    bench.create("after", "pass")
    bench.store.record_event(bench.job("after").uid, kind="exec", detail="no change of state")
    _move(bench, "after", JobEvent.PREPARING, JobEvent.STARTED)
    hooks.step()
    assert _told(receiver) == [("after", "QUEUED"), ("after", "PREPARING"), ("after", "RUNNING")]
    assert receiver.taken[1]["detail"] == "because"
    headers = receiver.headers[1]
    assert headers["webhook-id"] == f"ops-{receiver.taken[1]['seq']}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < TIMEOUT_S
    body = json.dumps(receiver.taken[1], sort_keys=True)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    digest = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    hooks.step()
    assert len(receiver.taken) == 3
    assert hooks.problem is None


def test_each_is_told_what_it_wants_alone(bench: Bench, receiver: Receiver, store: WebhookStore) -> None:
    hooks = Hooks(bench, store, _operators(receiver, states=(JobState.RUNNING,)))
    bench.create("job", "pass")
    _move(bench, "job", JobEvent.PREPARING, JobEvent.STARTED, JobEvent.SUCCEEDED)
    hooks.step()
    assert _told(receiver) == [("job", "RUNNING")]
    assert hooks.is_done(), "it has passed what it does not want"


def test_an_alert_of_a_budget_is_told_once_to_those_who_want_it(
    bench: Bench, receiver: Receiver, store: WebhookStore
) -> None:
    database = open_database(f"sqlite:///{bench.home.database}")
    alerts = SpendingStore(database)
    alert = Alert(project="vision", period="2026-11-22", share="0.9", limit_usd="40.00")
    assert alerts.raise_alert(alert, text="before", time_s=time.time())
    options = {"all": {}, "others": {"projects": ("nlp",)}, "jobs": {"budgets": False}}
    operators = [_operators(receiver, name, **values) for name, values in options.items()]
    hooks = Hooks(bench, store, {name: value for each in operators for name, value in each.items()})
    assert not alerts.raise_alert(alert, text="again", time_s=time.time())
    assert alerts.raise_alert(replace(alert, share="1"), text="all is spent", time_s=time.time())
    bench.create("job", "pass")
    hooks.step()
    hooks.step()
    database.dispose()
    assert sorted(message["event"] for message in receiver.taken) == ["budget", "enqueued", "enqueued"]
    number = [message["event"] for message in receiver.taken].index("budget")
    told = receiver.taken[number]
    assert (told["share"], told["limitUsd"], told["detail"]) == ("1", "40.00", "all is spent")
    assert receiver.headers[number]["webhook-id"] == f"all-{told['seq']}-budget"
    assert "job" not in told


@pytest.mark.parametrize("status", [500, 404, 302])
def test_what_fails_is_told_again_in_order_with_growing_pauses(
    bench: Bench, receiver: Receiver, store: WebhookStore, status: int
) -> None:
    hooks = Hooks(bench, store, _operators(receiver))
    bench.create("job", "pass")
    _move(bench, "job", JobEvent.PREPARING)
    receiver.status = status
    for number, pause_s in enumerate((*RETRY_S, RETRY_S[-1]), start=1):
        hooks.step()
        hooks.step()
        assert receiver.num_asked == number, "it waits"
        hooks.clock.offset_s += pause_s
    assert hooks.problem == f"it answered {status}"
    assert hooks.states()[0].since_s is not None
    receiver.status = 200
    hooks.step()
    assert _told(receiver) == [("job", "QUEUED"), ("job", "PREPARING")]
    assert hooks.problem is None
    receiver.status = status
    _move(bench, "job", JobEvent.STARTED)
    hooks.step()
    (failed,) = store.due(hooks.clock() + RETRY_S[0], names=["ops"])
    assert failed.num_failures == 1


def test_what_is_too_old_is_told_no_more(bench: Bench, receiver: Receiver, store: WebhookStore) -> None:
    hooks = Hooks(bench, store, _operators(receiver))
    bench.create("old", "pass")
    receiver.status = 500
    hooks.step()
    hooks.clock.offset_s = MAX_AGE_S + 1
    receiver.status = 200
    hooks.step()
    assert receiver.taken == []
    assert hooks.is_done()


def test_a_service_that_starts_again_retries_at_once_and_goes_on_where_it_was(
    bench: Bench, receiver: Receiver, store: WebhookStore
) -> None:
    hooks = Hooks(bench, store, _operators(receiver))
    bench.create("job", "pass")
    receiver.status = 500
    for pause_s in RETRY_S:
        hooks.step()
        hooks.clock.offset_s += pause_s
    hooks.step()
    receiver.status = 200
    Hooks(bench, store, _operators(receiver)).step()
    assert _told(receiver) == [("job", "QUEUED")]


def test_one_that_is_not_there_is_named_without_its_url(bench: Bench, receiver: Receiver, store: WebhookStore) -> None:
    hooks = Hooks(bench, store, _operators(receiver))
    bench.create("job", "pass")
    receiver.close()
    hooks.step()
    assert hooks.problem == "ConnectError"
    assert "in-the-url" not in repr((hooks.states(), _operators(receiver)))


def test_the_services_log_has_no_urls(receiver: Receiver, caplog: pytest.LogCaptureFixture, restored_log: None) -> None:
    start_log()
    with caplog.at_level(logging.INFO):
        assert post(receiver.url, b"{}", {}).status == 204
    assert "in-the-url" not in caplog.text


@pytest.mark.parametrize("host", ["a..b", "xn--", "a" * 80])
def test_a_host_that_cannot_be_named_is_a_failure_like_others(host: str) -> None:
    assert "Error" in (post(f"https://{host}/hook", b"", {}).problem or "")


def test_certificates_that_are_not_there_are_a_failure_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    monkeypatch.setattr("lockstep.service.notifications.posting._certificates", httpx.create_ssl_context)  # not kept
    assert post("https://127.0.0.1:1/hook", b"", {}).problem == "FileNotFoundError"


def test_one_that_never_answers_holds_up_no_other(
    bench: Bench, receiver: Receiver, store: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks_module, "POLL_S", 0.01)
    hanging = Receiver()
    hanging.hangs.set()
    stop = threading.Event()
    both = {**_operators(hanging, "hangs"), **_operators(receiver, "well")}
    every = Hooks(bench, store, both)
    hooks = every.all
    hooks.start(stop, has_lease=lambda: True)
    for number in range(3):
        bench.create(f"job_{number}", "pass")
    _until(lambda: len(receiver.taken) == 3 and hanging.num_asked == 1)
    hanging.close()
    _until(lambda: any(hook.problem for hook in every.states()))
    stop.set()
    hooks.join()
    (broken, well) = every.states()
    assert broken.display_url == f"http://127.0.0.1:{hanging.server.server_port}"
    assert well.problem is None


SERVICE = """
import sys, threading
from pathlib import Path
from lockstep.service.notifications import webhooks
from lockstep.service.security.vault import Vault
from lockstep.service.store import SecretStore, WebhookStore, open_database
webhooks.POLL_S = 0.01
database = open_database(sys.argv[1])
vault = Vault(store=SecretStore(database), key_path=Path("none"))
operators = webhooks.read_webhooks(Path(sys.argv[2]))
hooks = webhooks.Webhooks(operators, store=WebhookStore(database), vault=vault, restricted_post=webhooks.post)
hooks.start(threading.Event(), has_lease=lambda: True)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.heavy
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


def test_a_secret_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    config, file = tmp_path / "hooks.yaml", tmp_path / "hook.key"
    config.write_text(json.dumps({"webhooks": {"ops": {"url": "https://hooks.example.com", "secretFile": file.name}}}))
    with pytest.raises(ConfigError, match=r"webhook ops: its secret's file .*hook.key cannot be read"):
        read_webhooks(config)
    secret = f"whsec_{base64.b64encode(KEY).decode()}"
    for bad in ("", "a plain secret", f"whsec_{base64.b64encode(KEY[1:]).decode()}", secret.removeprefix("whsec_")):
        file.write_text(bad)
        file.chmod(0o600)
        with pytest.raises(ConfigError, match=r"hook.key; allowed: whsec_ and the base64 of 24 to 64 bytes; make"):
            read_webhooks(config)
    file.write_text(f"{secret}\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"hook\.key can be read by everybody; chmod 600"):
        read_webhooks(config)
    file.chmod(0o600)
    assert read_webhooks(config)["ops"][1] == KEY
    assert read_webhooks(None) == {}
