"""Series of metrics over the REST interface, and the service for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.recorded_servers import record_server, release, report

import lockstep
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.metrics import Sample, encode_sample
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.orders import GANG_ORDER, ReplicaPhase
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.jobs.security.access import Scope
from lockstep.runner.series import sample_key
from lockstep.service.api.resources import timestamp
from lockstep.service.api.telemetry import prometheus
from lockstep.service.control.job_inputs import gang_of
from lockstep.service.control.job_urls import metrics_url
from lockstep.service.control.orders import gang_order
from lockstep.service.prediction.servers import server_name
from lockstep.service.store import VersionRecord
from lockstep.service.telemetry import series as series_module
from lockstep.storage import open_bucket
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

WAIT = "import time; print('up', flush=True); time.sleep(600)"
START_S = 1_732_270_000.0
WORKERS = {
    "scaleTier": "CUSTOM",
    "masterType": "n1-standard-4",
    "workerType": "n1-standard-4",
    "workerCount": "2",
}


def _write(bench: Bench, job_id: str, replica: str, *, samples: list[Sample], attempt: int = 0) -> None:
    _write_to(metrics_url(bench.job(job_id), replica=replica, attempt=attempt), samples)


def _write_to(url: str, samples: list[Sample]) -> None:
    open_bucket(url).write(sample_key(samples[0].time_s), b"".join(encode_sample(sample) for sample in samples))


def _samples(count: int, *, start_s: float = START_S, **values: float) -> list[Sample]:
    return [Sample(time_s=start_s + 5 * number, values=values or {"step": float(number)}) for number in range(count)]


def _get(service: Served, job_id: str, **query: Any) -> dict[str, Any]:
    answer = service.http.get(f"/v1/projects/local/jobs/{job_id}/metrics", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def done(bench: Bench) -> str:
    """A job that is over, of which nothing was measured."""
    job = bench.create("done", "pass", **WORKERS)
    gang = gang_of(job, catalogue=load_catalogue())
    order = gang_order(
        job, gang=gang, nodes=["local"] * 3, settings=bench.settings, cluster=bench.cluster, catalogue=load_catalogue()
    )
    document = GANG_ORDER.dump_python(order, mode="json")
    bench.store.update(job.uid, state="SUCCEEDED", gang_order=document, gang_released=True, end_time_s=START_S + 1000)
    return "done"


def test_series_are_means_over_equal_intervals(bench: Bench, service: Served, done: str) -> None:
    _write(bench, done, "master-replica-0", samples=_samples(200))
    page = _get(service, done, maxPoints=10)
    (series,) = page["series"]
    assert (series["replica"], series["name"], series["unit"]) == ("master-replica-0", "step", "steps")
    assert page["intervalSeconds"] == 100.5
    assert len(series["points"]) == 10
    assert series["points"][0] == [START_S, 10.0]  # of 0 to 20: 21 samples in 100.5 seconds
    assert "nextPageToken" not in page
    assert _get(service, done, maxPoints=2000)["intervalSeconds"] == 5.0


def test_a_time_a_name_and_a_replica_are_chosen(bench: Bench, service: Served, done: str) -> None:
    for replica in ("master-replica-0", "worker-replica-1"):
        _write(bench, done, replica, samples=_samples(100, cpuCores=1.0, step=2.0))
        _write(bench, done, replica, samples=_samples(100, start_s=START_S + 500, cpuCores=3.0, step=4.0))
    chosen = {"replica": "worker-replica-1", "name": ["cpuCores", "program/loss"]}
    since, until = (
        "2024-11-22T10:15:00Z",
        "2024-11-22T10:16:00Z",
    )  # the first begins at 10:06:40, the second at 10:15:00
    (series,) = _get(service, done, since=since, until=until, **chosen)["series"]
    assert (series["name"], len(series["points"])) == ("cpuCores", 12)
    assert {value for _, value in series["points"]} == {3.0}
    (series,) = _get(service, done, until="2024-11-22T10:23:20Z", maxPoints=2, **chosen)["series"]
    assert [value for _, value in series["points"]] == [1.0, 3.0]


def test_replicas_come_page_by_page(bench: Bench, service: Served, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["master-replica-0", "worker-replica-0", "worker-replica-1"]
    for replica in names:
        _write(bench, done, replica, samples=_samples(3))
    for limit, value in (("MAX_REPLICAS", 2), ("MAX_SEGMENTS", 2), ("MAX_PAGE_POINTS", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(series_module, limit, value)
            first = _get(service, done)
            second = _get(service, done, pageToken=first["nextPageToken"])
        assert [series["replica"] for page in (first, second) for series in page["series"]] == names
        assert len(first["series"]) == 2
        assert "nextPageToken" not in second


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"name": "cpuCore"}, "metric; received 'cpuCore'; allowed: cpuCores, "),
        ({"replica": "worker-replica-9"}, "replica; received 'worker-replica-9'; allowed: master-replica-0, "),
        ({"attempt": 1}, "attempt; received 1; allowed: 0 to 0"),
        ({"since": "yesterday"}, "since; received 'yesterday'"),
        ({"pageToken": "x"}, "pageToken was not issued"),
        ({"maxPoints": 0}, "maxPoints"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_there_is_refused(service: Served, done: str, query: dict[str, Any], message: str) -> None:
    answer = service.http.get(f"/v1/projects/local/jobs/{done}/metrics", params=query)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_job_that_waits_has_none(bench: Bench, service: Served) -> None:
    bench.create("waits", "pass")
    assert _get(service, "waits")["series"] == []


def test_a_job_measured_by_its_runner_is_there_for_prometheus(
    bench: Bench, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runs", "runs_too", "waits"):
        bench.create(name, WAIT)
    bench.step_until_state("runs", JobState.RUNNING)
    bench.step_until("runs_too", lambda job: bool(job.replicas) and bool(job.replicas[0].status.metrics))
    families = _scrape(service)
    (build,) = families["lockstep_build_info"]
    assert build.labels == {"version": lockstep.__version__}
    assert {(s.labels["state"], s.value) for s in families["lockstep_jobs"]} == {("RUNNING", 2.0), ("QUEUED", 1.0)}
    assert families["lockstep_queue_length"][0].value == 1
    assert families["lockstep_engine_up"][0].value == 1
    memory = {s.labels["job"]: s for s in families["lockstep_replica_memory_bytes"]}
    assert memory["runs_too"].labels == {"project": "local", "job": "runs_too", "replica": "master-replica-0"}
    assert memory["runs_too"].value > 1_000_000
    assert {sample.labels["job"] for sample in families["lockstep_replica_cpu_seconds"]} == {"runs", "runs_too"}
    monkeypatch.setattr(prometheus, "MAX_REPLICAS", 1)
    families = _scrape(service)
    assert [sample.labels["job"] for sample in families["lockstep_replica_cpu_seconds"]] == ["runs"]
    assert families["lockstep_replicas_left_out"][0].value == 1


def _scrape(service: Served, *, key: str = HOME_TOKEN) -> dict[str, list[Any]]:
    answer = service.http.get("/metrics", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family.samples for family in text_string_to_metric_families(answer.text)}


def test_prometheus_needs_a_token_as_all_do(service: Served) -> None:
    assert service.http.get("/metrics", headers={"authorization": "Bearer no"}).status_code == 401


def test_a_key_of_one_project_sees_that_project(bench: Bench, service: Served) -> None:
    bench.create("mine", "pass")
    for project, count in (("local", 1), ("other", 0)):
        key = service.key(Scope.VIEWER, project=project)
        families = _scrape(service, key=key)
        assert [sample.value for sample in families["lockstep_jobs"]] == [1.0] * count
        assert families["lockstep_queue_length"][0].value == count
        assert "lockstep_controller_passes" not in families


def test_the_controllers_passes_are_timed(bench: Bench, service: Served) -> None:
    bench.controller.passes.note(0.25)
    bench.controller.passes.note(0.5)
    families = _scrape(service)
    assert families["lockstep_controller_pass_seconds"][0].value == 0.75
    assert families["lockstep_controller_passes"][0].value == 2
    assert families["lockstep_controller_last_pass_seconds"][0].value == 0.5


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a model whose servers were recorded, and measured for 100 s each."""

    bench: Bench
    service: Served
    record: VersionRecord

    def serve(self, *, start_s: float, end_s: float | None = None) -> str:
        """Records a server from a time on; returns its name."""
        jobs = self.service.context.jobs
        server = record_server(jobs, self.record, bucket=str(self.bench.home.bucket))
        ready = {"started_time_s": start_s, "ready_time_s": start_s}
        server = report(jobs, server, phase=ReplicaPhase.RUNNING, **ready)
        jobs.update(server.uid, create_time_s=start_s)
        if end_s is not None:
            release(jobs, server, JobEvent.SUCCEEDED)
            jobs.update(server.uid, end_time_s=end_s)
        samples = _samples(20, start_s=start_s, cpuCores=start_s - START_S)
        _write_to(metrics_url(server, replica="master-0", attempt=0), samples)
        return server_name(server)

    def get(self, *, status: int = 200, **query: Any) -> dict[str, Any]:
        answer = self.service.http.get("/v1/projects/local/models/m/versions/v1/metrics", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    def names(self, **query: Any) -> list[str]:
        """Returns the names of the servers on all pages."""
        found: list[str] = []
        token = ""
        while True:
            page = self.get(**query, pageToken=token)
            found += [series["server"] for series in page["series"]]
            if (token := page.get("nextPageToken", "")) == "":
                return found


@pytest.fixture
def version(bench: Bench, service: Served) -> Version:
    models = service.context.models
    models.create_model(project="local", name="m", description="", labels={})
    fields: dict[str, Any] = {"project": "local", "model": "m", "name": "v1", "machine_type": "n1-standard-4"}
    models.create_version(**fields, description="", labels={}, deployment_uri="/m")
    record = models.get_version(project="local", model="m", name="v1")
    models.update_version(record, files=(FileOrder(url="/m", name="m", sha256="0"),))
    record = models.get_version(project="local", model="m", name="v1")
    return Version(bench=bench, service=service, record=record)


def test_the_series_of_a_versions_servers_are_in_a_jobs_form(version: Version) -> None:
    name = version.serve(start_s=START_S + 1)
    until = timestamp(START_S + 101)
    page = version.get(maxPoints=2000, until=until)
    (series,) = page["series"]
    assert series == {
        "server": name,
        "replica": "master-0",
        "attempt": 0,
        "name": "cpuCores",
        "unit": "cores",
        "points": [[START_S + 1 + 5 * number, 1.0] for number in range(20)],
    }
    assert page["intervalSeconds"] == 5.0
    assert "nextPageToken" not in page
    assert version.get(name=["step"])["series"] == []
    assert version.get(server=name, maxPoints=2000, until=until)["series"] == [series]


def test_the_servers_are_those_that_run_now_or_ran_in_an_interval(version: Version) -> None:
    message = version.get(status=404)["error"]["message"]
    assert message == "version v1 of model m has had no server yet; try again soon"
    first = version.serve(start_s=START_S, end_s=START_S + 100)
    second = version.serve(start_s=START_S + 1000, end_s=START_S + 1100)
    assert version.names() == [second], "none runs: it is the newest"
    third, fourth = (version.serve(start_s=START_S + 2000 + number) for number in (1, 2))
    assert version.names() == [third, fourth]
    assert version.names(server=first) == [first]
    since = timestamp(START_S + 50)
    assert version.names(since=since) == [first, second, third, fourth]
    assert version.names(since=since, until=timestamp(START_S + 1050)) == [first, second]
    assert version.names(until=timestamp(START_S + 50)) == [first]


def test_a_page_goes_on_with_the_next_server_when_one_ends_meanwhile(version: Version) -> None:
    names = [version.serve(start_s=START_S + number) for number in range(3)]
    jobs = version.service.context.jobs
    token = version.get()["nextPageToken"]
    assert token == names[1]
    second = jobs.last_server(version.record.uid, job_id=f"m/v1/{token}")
    assert second is not None
    release(jobs, second, JobEvent.FAILED)
    page = version.get(pageToken=token)
    assert [series["server"] for series in page["series"]] == [names[2]]
    assert "nextPageToken" not in page


def test_a_server_that_is_not_there_is_refused(version: Version) -> None:
    version.serve(start_s=START_S)
    assert "has no server 'other'" in version.get(status=404, server="other")["error"]["message"]
    assert "not issued by this service" in version.get(status=400, pageToken="other")["error"]["message"]
    answer = version.service.http.get("/v1/projects/local/models/m/versions/v2/metrics")
    assert answer.status_code == 404
