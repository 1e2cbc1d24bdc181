"""The queue, quotas, prediction servers and requests of versions over REST, and in the client."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.recorded_servers import make_ready, record_server

from lockstep.client import Client
from lockstep.client.addresses import ServiceAddress
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import ProjectUse, Quota
from lockstep.service.api.control.queue import quota_forms
from lockstep.service.prediction.metrics import MAX_MINUTES, PredictionMetrics, VersionName
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

HANGS = "import time\ntime.sleep(600)"


@pytest.fixture
def client(service: Served) -> Any:
    with Client(ServiceAddress(url=service.url, token=HOME_TOKEN), project="local") as made:
        yield made


def test_the_queue_is_read_in_its_order_page_by_page(client: Client, service: Served, bench: Bench) -> None:
    for number in range(2):
        bench.create(f"runs_{number}", HANGS)
        bench.step_until_state(f"runs_{number}", JobState.RUNNING)
    for number in range(5):
        bench.create(f"job_{number}", "pass", scheduling={"priority": 7 if number == 4 else 0})
    bench.step()
    order = ["job_4", "job_0", "job_1", "job_2", "job_3"]
    found = client.queue()
    assert [job["jobId"] for job in found["jobs"]] == order
    assert [job["position"] for job in found["jobs"]] == [1, 2, 3, 4, 5]
    assert found["numQueued"] == 5
    assert "job slots" in found["jobs"][0]["reason"]
    assert found["jobs"][0]["startByTime"] is not None, "the first one has a promise"
    assert [job["jobId"] for job in client.queue(limit=3)["jobs"]] == order[:3]
    pages, token = [], ""
    while True:
        page = service.http.get("/v1/queue", params={"pageSize": 2, "pageToken": token}).json()
        pages.append([job["jobId"] for job in page["jobs"]])
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert pages == [order[:2], order[2:4], order[4:]]
    assert found["quotas"] == [
        {
            "project": "local",
            "machinesLimit": None,
            "machinesInUse": 2,
            "acceleratorsLimit": {},
            "acceleratorsInUse": {},
            "dollarsPerDay": None,
            "requestsPerSecond": None,
            "heldReason": None,
        }
    ]
    for token in ("x", "-1", "1" * 30, "\u0664"):
        assert service.http.get("/v1/queue", params={"pageToken": token}).status_code == 400, token


def test_quotas_are_told_with_what_is_used_of_them() -> None:
    quotas = {"a": Quota(accelerators={"NVIDIA_TESLA_V100": 8}, machines=2), "b": Quota()}
    uses = {"c": ProjectUse(num_machines=1, accelerators={"NVIDIA_TESLA_V100": 4})}
    found = quota_forms(quotas, uses=uses, held={"d": "its budget is spent"})
    assert [(each["project"], each["machinesInUse"], each["machinesLimit"]) for each in found] == [
        ("a", 0, 2),
        ("b", 0, None),
        ("c", 1, None),
        ("d", 0, None),
    ]
    assert found[2]["acceleratorsInUse"] == {"NVIDIA_TESLA_V100": 4}
    assert found[3]["heldReason"] == "its budget is spent"


def test_the_servers_of_a_version_are_told(client: Client, service: Served) -> None:
    service.http.post("/v1/projects/local/models", json={"name": "m"})
    service.http.post("/v1/projects/local/models/m/versions", json={"name": "v1", "deploymentUri": "/m"})
    models, name = service.context.models, {"project": "local", "model": "m", "name": "v1"}
    file = FileOrder(url="/bucket/net.keras", name="net.keras", sha256="0")
    assert models.update_version(models.get_version(**name), files=(file,))
    version = models.get_version(**name)
    jobs = service.context.jobs
    running = make_ready(jobs, record_server(jobs, version))
    queued = record_server(jobs, version)
    found = client.version_servers("m", version="v1")
    assert [(each["name"], each["state"], each["ready"]) for each in found] == [
        (running.job_id.rpartition("/")[2], "RUNNING", True),
        (queued.job_id.rpartition("/")[2], "QUEUED", False),
    ]
    assert found[1]["waitingFor"].startswith("position ")
    assert found[0]["waitingFor"] is None
    assert client.version_requests("m", version="v1")["minutes"] == []


def test_requests_are_counted_by_the_minute_and_the_oldest_minutes_are_forgotten() -> None:
    now_s = 1000.0
    metrics = PredictionMetrics(wall_clock=lambda: now_s)
    name = VersionName(project="p", model="m", version="v")

    def count(latency_s: float, *, status: int = 200) -> None:
        with metrics.observe(project="p", model="m", since_s=metrics.clock() - latency_s) as seen:
            seen.version, seen.status = "v", status

    count(0.5)
    count(1.5, status=503)
    now_s = 1020.0
    count(0.5)
    now_s = 900.0  # a clock that was set back
    count(0.5)
    found = metrics.minutes(name)
    assert [(minute.start_s, minute.num_requests, minute.num_errors) for minute in found] == [(960, 2, 1), (1020, 2, 0)]
    assert found[0].latency_s == pytest.approx(2.0, abs=0.2)
    for number in range(2 * MAX_MINUTES):
        now_s = 2000.0 + 60 * number
        count(0.0)
    assert len(metrics.minutes(name)) == MAX_MINUTES
    assert metrics.minutes(VersionName(project="p", model="m", version="other")) == []
