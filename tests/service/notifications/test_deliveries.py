"""The history of webhooks' deliveries: what is kept of each, who sees it, and that it tells no secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.service.console.signed_in import signed_in
from tests.service.receiver import Receiver
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.home import Home
from lockstep.jobs.notifications.webhooks import Webhook
from lockstep.jobs.running.states import JobEvent
from lockstep.jobs.security.access import Scope
from lockstep.service.api.forms import DeliveryListForm
from lockstep.service.notifications.webhooks import RETRY_S, Webhooks
from lockstep.service.settings import Settings
from lockstep.service.store import NUM_DELIVERIES_MAX, WebhookStore, open_database
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.served import HOME_TOKEN, Served

KEY = b"k" * 24
HOOKS = "/v1/webhooks"
JOBS = "/v1/projects/local/jobs"


class Site:
    """A service with a webhook of the operator, whose queues are served when a test says so."""

    def __init__(self, bench: Bench, receiver: Receiver) -> None:
        self.bench, self.receiver = bench, receiver
        operators = {"ops": (Webhook(name="ops", url=receiver.url, secret_file=None), KEY)}
        self.served = Served(bench, operators=operators)
        self.hooks: Webhooks = self.served.context.webhooks
        self.database = open_database(f"sqlite:///{bench.home.database}")
        self.store = WebhookStore(self.database)
        self.store.register("ops", now_s=0.0)

    def deliver(self, *, after_s: float = 0.0) -> None:
        """Serves the queues that are due after some seconds."""
        now_s = self.hooks._clock() + after_s
        for queue in [
            *self.store.due(now_s, names=["ops"]),
            *self.store.due_of_jobs(now_s, without=(), limit=100),
        ]:
            self.hooks.deliver(queue)

    def of_operator(self) -> list[dict[str, Any]]:
        found = self.served.http.get(f"{HOOKS}/ops/deliveries")
        assert found.status_code == 200, found.text
        assert "in-the-url" not in found.text
        return TypeAdapter(DeliveryListForm).validate_json(found.text)["deliveries"]  # type: ignore[return-value]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    receiver = Receiver()
    home = Home(path=tmp_path / "home")
    home.path.mkdir()
    settings = Settings(home=home, bucket=str(home.bucket), allow_webhooks_to=("127.0.0.0/8",))
    with open_bench(settings) as bench:
        made = Site(bench, receiver)
        monkeypatch.setenv("LOCKSTEP_HOME", str(home.path))
        monkeypatch.setenv("LOCKSTEP_URL", made.served.url)
        monkeypatch.setenv("LOCKSTEP_TOKEN", HOME_TOKEN)
        yield made
        made.served.close()
        made.database.dispose()
    receiver.close()


def test_each_attempt_is_kept_with_its_answer_and_without_the_url(site: Site) -> None:
    site.bench.create("told", "pass")
    assert site.of_operator() == []
    site.receiver.status = 500
    site.deliver()
    site.deliver(after_s=RETRY_S[0])
    site.receiver.status = 204
    site.deliver(after_s=RETRY_S[1])
    accepted, second, first = site.of_operator()
    shown = [(each["attempt"], each["status"], each["problem"]) for each in (first, second, accepted)]
    assert shown == [(1, 500, "it answered 500"), (2, 500, "it answered 500"), (3, 204, None)]
    assert {(each["project"], each["jobId"], each["event"], each["state"]) for each in (first, accepted)} == {
        ("local", "told", "enqueued", "QUEUED")
    }
    assert accepted["messageId"] == first["messageId"] == site.receiver.headers[0]["webhook-id"]
    assert 0 <= accepted["seconds"] < 60

    text = CliRunner().invoke(app, ["webhooks", "deliveries", "ops"], catch_exceptions=False).stdout
    assert "it answered 500" in text
    with signed_in(site.served) as operator:
        page = operator.get("/access").text
        assert page.count("it answered 500") == 2
        assert "accepted: 204" in page
        assert "in-the-url" not in page


def test_only_the_last_ones_are_kept(site: Site) -> None:
    for number in range(NUM_DELIVERIES_MAX + 3):
        site.bench.create(f"job_{number}", "pass")
    while len(site.receiver.taken) < NUM_DELIVERIES_MAX + 3:
        site.deliver()
    kept = site.of_operator()
    assert len(kept) == NUM_DELIVERIES_MAX
    assert kept[0]["jobId"] == f"job_{NUM_DELIVERIES_MAX + 2}"
    assert kept[-1]["jobId"] == "job_3"


def test_a_jobs_own_webhook_has_its_own_history_for_its_project_alone(site: Site) -> None:
    hook = {"url": site.receiver.url, "states": ["FAILED"]}
    body = {"jobId": "own", "trainingInput": {"pythonModule": "train", "lockstep": {"webhooks": [hook]}}}
    assert site.served.http.post(JOBS, json=body).status_code == 200
    uid = site.bench.store.get(project="local", job_id="own").uid
    for kind in (JobEvent.PREPARING, JobEvent.STARTED, JobEvent.FAILED):
        site.bench.store.advance(uid, kind, detail="because")
    site.deliver()
    path = f"{JOBS}/own/webhooks/0/deliveries"
    (only,) = site.served.http.get(path).json()["deliveries"]
    assert (only["state"], only["status"], only["messageId"][: len(uid)]) == ("FAILED", 204, uid)
    assert {each["event"] for each in site.of_operator()} == {"enqueued", "preparing", "started", "failed"}

    shown = CliRunner().invoke(app, ["webhooks", "deliveries", "0", "--job", "own", "--json"]).stdout
    assert only["messageId"] in shown
    refused = CliRunner().invoke(app, ["webhooks", "deliveries", "ops", "--job", "own"])
    assert "received 'ops'; allowed: the number of one of its webhooks, from 0" in str(refused.exception)

    viewer = site.served.client(site.served.key(Scope.VIEWER, project="local"))
    other = site.served.client(site.served.key(Scope.OPERATOR, project="other"))
    assert viewer.get(path).status_code == 200
    assert viewer.get(f"{HOOKS}/ops/deliveries").status_code == 403
    assert other.get(path).status_code == other.get(f"{JOBS}/none/webhooks/0/deliveries").status_code
    assert other.get(path).status_code in (403, 404)
    assert other.get(f"{HOOKS}/ops/deliveries").status_code == 403
    for missing in (f"{JOBS}/own/webhooks/1/deliveries", f"{HOOKS}/nobody/deliveries"):
        assert site.served.http.get(missing).status_code == 404, missing
    assert site.served.http.get(f"{JOBS}/own/webhooks/8/deliveries").status_code == 400
