"""What versions wait for, and how many of their servers are ready, from what is recorded of the servers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.service.recorded_servers import READY_WITHIN_S, make_ready, record_server, release, report

from lockstep.jobs.running.order_parts import ContainerRoutes, FileOrder
from lockstep.jobs.running.orders import Fault, ProgramEnd, ReplicaPhase, ReplicaRestart
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.states import JobEvent
from lockstep.service.api.resources import timestamp
from lockstep.service.store import JobRecord, VersionContainer, VersionRecord, VersionState
from lockstep.testing.served import Served

VERSION = "/v1/projects/local/models/m/versions/v1"
FILES = (FileOrder(url="/bucket/net.keras", name="net.keras", sha256="0"),)


class Site:
    """A version of a model whose servers a test records."""

    def __init__(self, service: Served) -> None:
        self.service = service
        self.jobs = service.context.jobs
        self.models = service.context.models
        self.models.create_model(project="local", name="m", description="", labels={})

    def create(self, **fields: Any) -> None:
        self.models.create_version(
            project="local",
            model="m",
            name="v1",
            description="",
            labels={},
            deployment_uri="gs://b/net.keras",
            machine_type="n1-standard-4",
            **fields,
        )

    @property
    def record(self) -> VersionRecord:
        return self.models.get_version(project="local", model="m", name="v1")

    def change(self, **changes: Any) -> None:
        assert self.models.update_version(self.record, **changes)

    def serve(self) -> JobRecord:
        """Queues a server."""
        return record_server(self.jobs, self.record)

    def own(self) -> dict[str, Any]:
        return self.service.http.get(VERSION).json()["lockstep"]

    def waits(self) -> str | None:
        return self.own().get("waitingFor")

    def deployed_status(self) -> str:
        """What Vertex AI's form says of the version."""
        endpoint = self.service.http.get("/v1/projects/local/locations/us-central1/endpoints/m").json()
        return endpoint["deployedModels"][0]["status"]["message"]


@pytest.fixture
def site(service: Served) -> Site:
    return Site(service)


@pytest.fixture
def ready(site: Site) -> Site:
    """A version that is READY, with one server, which is ready."""
    site.create()
    site.change(files=FILES, state=VersionState.READY)
    make_ready(site.jobs, site.serve())
    return site


def _id(server: JobRecord) -> str:
    return server.job_id.rpartition("/")[2]


def test_a_new_version_waits_for_each_step_until_its_server_is_ready(site: Site) -> None:
    site.create()
    assert site.own() == {"waitingFor": "its files, which are being copied from gs://b/net.keras", "numReadyServers": 0}
    site.change(error_message="the bucket does not respond\nmore")
    again = "; it is tried again, since it failed: the bucket does not respond"
    assert site.waits() == f"its files, which are being copied from gs://b/net.keras{again}"
    assert site.deployed_status().endswith(again)
    assert "errorMessage" not in site.service.http.get(VERSION).json()
    site.change(files=FILES, error_message=None)
    assert site.waits() == "a server, which the service starts next"
    server = site.serve()
    assert site.waits() == f"position 1: {site.service.context.controller.schedule.explain(server).reason}"
    for phase, text in (
        (ReplicaPhase.PLACED, "whose runner is starting on its node"),
        (ReplicaPhase.SETUP, "which gets its files and packages"),
    ):
        report(site.jobs, server, phase=phase)
        assert site.waits() == f"server {_id(server)}, {text}"
    started_s = time.time()
    report(site.jobs, server, phase=ReplicaPhase.RUNNING, started_time_s=started_s)
    by = timestamp(started_s + READY_WITHIN_S)
    loads = f"server {_id(server)}, which loads and compiles its model; it fails if it is not ready by {by}"
    assert site.own() == {"waitingFor": loads, "numReadyServers": 0}
    assert site.deployed_status() == f"CREATING: {loads}"
    make_ready(site.jobs, server)
    site.change(state=VersionState.READY)
    assert site.own() == {"numReadyServers": 1}


def test_a_routine_is_loaded_and_a_container_is_asked(site: Site) -> None:
    site.create(prediction_class="a.Predictor")
    site.change(files=FILES)
    server = site.serve()
    report(site.jobs, server, phase=ReplicaPhase.RUNNING)
    assert f"server {_id(server)}, which loads its routine; it fails" in (site.waits() or "")
    routes = ContainerRoutes(port=8080, predict="/p", health="/h")
    container = VersionContainer(image="server:1", routes=routes)
    site.change(prediction_class=None, container=container)
    assert f"server {_id(server)}, whose container does not answer /h with status 200 yet" in (site.waits() or "")
    report(site.jobs, server, phase=ReplicaPhase.SETUP)
    assert (site.waits() or "").endswith("which gets its image and files")


def test_a_ready_version_whose_only_server_is_launched_again_says_so(ready: Site) -> None:
    (server,) = ready.jobs.servers()
    end = ProgramEnd(signal="SIGKILL", fault=Fault.MACHINE)
    report(ready.jobs, server, phase=ReplicaPhase.ENDED, ended_time_s=time.time(), end=end)
    ended = f"server {_id(server)}, which has ended: killed by SIGKILL"
    assert ready.own() == {"waitingFor": ended, "numReadyServers": 0}
    again = ReplicaRestart(number=2, time_s=time.time(), reason="MACHINE_ERROR(SIGKILL, master-0)")
    changes = {"ready_time_s": None, "ended_time_s": None, "end": None, "restarts": (again,)}
    report(ready.jobs, server, phase=ReplicaPhase.RUNNING, **changes)
    launched = f"server {_id(server)}, launched again (restart 2, after MACHINE_ERROR(SIGKILL, master-0))"
    assert ready.own() == {
        "waitingFor": f"{launched}, which loads and compiles its model",
        "numReadyServers": 0,
    }
    make_ready(ready.jobs, server)
    assert ready.own() == {"numReadyServers": 1}


def test_after_failures_a_version_waits_for_the_end_of_the_pause(ready: Site) -> None:
    (server,) = ready.jobs.servers()
    release(ready.jobs, server, JobEvent.FAILED, error_message="a file has changed\nmore", end_reason="USER_ERROR")
    now_s = time.time() + 3600  # so that the pause is not over before it is read
    ready.change(num_failures=13, last_failure_time_s=time.time())
    end_s = ready.record.last_failure_time_s
    assert end_s is not None
    assert end_s + 2**12 > now_s
    assert ready.waits() == (
        f"the end of a pause at {timestamp(end_s + 2**12)}, when a server is started again; "
        "13 servers in a row failed before being ready: a file has changed"
    )
    ready.change(last_failure_time_s=time.time() - 2**12)
    assert ready.waits() == "a server, which the service starts next"


def test_a_server_that_drains_is_waited_for(ready: Site) -> None:
    (first,) = ready.jobs.servers()
    second = make_ready(ready.jobs, ready.serve())
    assert ready.own() == {"numReadyServers": 2}
    ready.jobs.update(second.uid, drain_time_s=time.time())
    drains = f"server {_id(second)}, which drains: it answers its open requests"
    assert ready.own() == {"waitingFor": f"{drains}, and is then ended", "numReadyServers": 1}
    progress = Progress(time_s=time.time(), metrics={"open": 3.0})
    report(ready.jobs, second, phase=ReplicaPhase.RUNNING, progress=progress)
    assert ready.waits() == f"{drains} (3 at its last report), and is then ended"
    ready.jobs.advance(second.uid, JobEvent.CANCEL_REQUESTED, detail="")
    assert ready.own() == {"numReadyServers": 1}, "it is no longer needed"
    report(ready.jobs, first, phase=ReplicaPhase.SETUP, ready_time_s=None)
    assert f"server {_id(first)}" in (ready.waits() or "")


def test_a_version_that_is_deleted_waits_for_its_servers_and_files(ready: Site) -> None:
    (server,) = ready.jobs.servers()
    ready.models.begin_delete_version(project="local", model="m", name="v1")
    assert ready.waits() == f"the end of server {_id(server)}"
    ready.jobs.update(server.uid, drain_time_s=time.time())
    assert f"server {_id(server)}, which drains" in (ready.waits() or "")
    ready.jobs.advance(server.uid, JobEvent.CANCEL_REQUESTED, detail="")
    other = ready.serve()
    assert ready.waits() == "the end of 2 servers"
    release(ready.jobs, server, JobEvent.CANCELLED)
    assert ready.waits() == f"the end of server {_id(other)}"
    ready.jobs.advance(other.uid, JobEvent.CANCEL_REQUESTED, detail="")
    release(ready.jobs, other, JobEvent.CANCELLED)
    assert ready.waits() == "the deletion of its files"


def test_a_version_that_failed_waits_for_nothing(ready: Site) -> None:
    ready.change(state=VersionState.FAILED, error_message="it broke")
    assert ready.own() == {"numReadyServers": 1}


def test_what_the_service_says_of_servers_is_ignored_in_requests(ready: Site) -> None:
    body = {"name": "v2", "deploymentUri": "/m", "lockstep": ready.own()}
    assert ready.service.http.post("/v1/projects/local/models/m/versions", json=body).status_code == 200
