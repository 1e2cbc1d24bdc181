"""The REST interface, through Google's own client wherever the contract has the method."""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.auth.exceptions import RefreshError
from googleapiclient.errors import HttpError
from sqlalchemy import update

from lockstep.errors import UnavailableError
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.jobs.scheduling import NodeSpec, Quota
from lockstep.service.store import ModelStore, Traffic, VersionState
from lockstep.service.store.tables import JOB_ATTEMPTS
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served


def _body(job_id: str = "job_1", **training_input: Any) -> dict[str, Any]:
    return {
        "jobId": job_id,
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-8",
            "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
            "pythonModule": "train",
            "args": ["--epochs", "2"],
            **training_input,
        },
        "labels": {"team": "vision"},
    }


def test_googles_client_creates_gets_lists_and_cancels(service: Served, bench: Bench) -> None:
    jobs = service.google().jobs()
    created = jobs.create(parent="projects/local", body=_body()).execute()
    assert created["state"] == "QUEUED"
    assert created["trainingInput"]["masterConfig"]["acceleratorConfig"] == {"count": "2", "type": "NVIDIA_TESLA_V100"}
    assert created["lockstep"]["simulated"] is True
    got = jobs.get(name="projects/local/jobs/job_1").execute()
    assert got == created
    listed = jobs.list(parent="projects/local", filter="jobId:job* AND labels.team=vision").execute()
    assert [job["jobId"] for job in listed["jobs"]] == ["job_1"]
    assert jobs.list(parent="projects/local", filter="state:FAILED").execute()["jobs"] == []
    assert jobs.cancel(name="projects/local/jobs/job_1", body={}).execute() == {}
    assert jobs.get(name="projects/local/jobs/job_1").execute()["state"] == "CANCELLING"
    bench.step_until_state("job_1", JobState.CANCELLED)
    ended = jobs.get(name="projects/local/jobs/job_1").execute()
    assert ended["state"] == "CANCELLED"
    assert ended["trainingOutput"] == {"consumedMLUnits": 0}


def test_a_custom_job_is_translated(service: Served, tmp_path: Path) -> None:
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "pythonPackageSpec": {"pythonModule": "train"}}
    spec = {"workerPoolSpecs": [pool], "baseOutputDirectory": {"outputUriPrefix": f"{tmp_path}/out/"}}
    created = service.google().jobs().create(parent="projects/local", body={"displayName": "a-b", "jobSpec": spec})
    job = created.execute()
    assert (job["jobId"], job["trainingInput"]["masterType"]) == ("a_b", "n1-standard-4")
    outputs = job["lockstep"]["outputs"]
    assert [outputs[kind] for kind in ("model", "checkpoints", "tensorboard")] == [
        f"{tmp_path}/out/model",
        f"{tmp_path}/out/checkpoints",
        f"{tmp_path}/out/logs",
    ]


def test_a_job_can_be_asked_about_and_is_not_recorded(service: Served) -> None:
    answer = service.http.post("/v1/projects/local/jobs", params={"validateOnly": "true"}, json=_body()).json()
    assert [replica["name"] for replica in answer["replicas"]] == ["master-replica-0"]
    assert (answer["simulated"], answer["queue"]["startsNow"]) == (True, True)
    assert service.http.get("/v1/projects/local/jobs").json()["jobs"] == []
    service.google().jobs().create(parent="projects/local", body=_body()).execute()
    taken = service.http.post("/v1/projects/local/jobs", params={"validateOnly": "true"}, json=_body()).json()
    assert "has a job 'job_1' already" in taken["problem"]
    assert "queue" not in taken


def test_patch_changes_labels_under_an_etag(service: Served) -> None:
    jobs = service.google().jobs()
    etag = jobs.create(parent="projects/local", body=_body()).execute()["etag"]
    name = "projects/local/jobs/job_1"
    patched = jobs.patch(name=name, updateMask="labels", body={"labels": {"a": "b"}, "etag": etag}).execute()
    assert patched["labels"] == {"a": "b"}
    with pytest.raises(HttpError) as caught:
        jobs.patch(name=name, updateMask="labels", body={"labels": {}, "etag": etag}).execute()
    assert caught.value.status_code == 409
    with pytest.raises(HttpError) as caught:
        jobs.patch(name=name, updateMask="trainingInput", body={}).execute()
    assert caught.value.status_code == 400


def test_pages_hold_every_job_once(service: Served) -> None:
    jobs = service.google().jobs()
    for number in range(7):
        jobs.create(parent="projects/local", body=_body(f"job_{number}")).execute()
    seen: list[str] = []
    token = None
    while True:
        page = jobs.list(parent="projects/local", pageSize=3, pageToken=token).execute()
        seen += [job["jobId"] for job in page["jobs"]]
        token = page.get("nextPageToken")
        if token is None:
            break
    assert seen == [f"job_{number}" for number in reversed(range(7))]


def test_another_project_does_not_see_the_job(service: Served) -> None:
    service.google().jobs().create(parent="projects/local", body=_body()).execute()
    with pytest.raises(HttpError) as caught:
        service.google().jobs().get(name="projects/other/jobs/job_1").execute()
    assert caught.value.status_code == 404
    assert service.google().jobs().list(parent="projects/other").execute() == {"jobs": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scaleTeir": "BASIC"}, "did you mean 'scaleTier'?"),
        ({"workerCount": "many"}, "trainingInput.workerCount"),
        ({"masterType": "n1-standard-7"}, "n1-standard-7"),
        ({"encryptionConfig": {"kmsKeyName": "k"}}, "trainingInput.encryptionConfig"),
        ({"region": "the-moon"}, "region"),
    ],
)
def test_bad_jobs_are_refused_in_googles_form(service: Served, change: dict[str, Any], message: str) -> None:
    answer = service.http.post("/v1/projects/local/jobs", json=_body(**change))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert message in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize("body", ["", "[]", "{", '"x"', "null", "[" * 100_000])
def test_garbage_is_refused_and_never_a_500(service: Served, body: str) -> None:
    for path in ("jobs", "models", "models/m/versions", "models/m:predict"):
        answer = service.http.post(f"/v1/projects/local/{path}", content=body)
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["message"]


def test_a_name_is_taken_once(service: Served) -> None:
    assert service.http.post("/v1/projects/local/jobs", json=_body()).status_code == 200
    answer = service.http.post("/v1/projects/local/jobs", json=_body())
    assert answer.json()["error"]["status"] == "ALREADY_EXISTS"


def test_every_route_but_health_needs_the_token(service: Served) -> None:
    paths = ["/v1/service", "/v1/projects/local/jobs", "/v1/projects/local/models", "/v1/nowhere"]
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": HOME_TOKEN}, {"authorization": "Bearer ü"}):
        encoded = {name: value.encode() for name, value in header.items()}
        for path in paths:
            assert httpx.get(service.url + path, headers=encoded).status_code == 401
    assert httpx.get(service.url + "/healthz").json() == {"status": "ok"}
    with pytest.raises(RefreshError):  # Google's client answers a 401 by asking for a new token, and has no way to
        service.google("wrong").jobs().list(parent="projects/local").execute()


def test_a_bucket_that_cannot_be_written_is_said_at_submission(service: Served, bench: Bench) -> None:
    (bench.home.path / "file").write_text("no folder")
    answer = service.http.post("/v1/projects/local/jobs", json=_body(jobDir=str(bench.home.path / "file")))
    assert answer.status_code == 400
    assert str(bench.home.path / "file") in answer.json()["error"]["message"]


def test_the_log_comes_exactly_once_through_its_cursor(service: Served, bench: Bench) -> None:
    bench.create("talks", "for i in range(2500): print(i)")
    bench.step_until_over("talks")
    lines: list[str] = []
    cursor = ""
    while True:
        page = service.http.get(
            "/v1/projects/local/jobs/talks/logEntries", params={"cursor": cursor, "pageSize": 999}
        ).json()
        lines += [entry["textPayload"] for entry in page["entries"]]
        cursor = page["cursor"]
        if page["complete"]:
            break
    assert lines == [str(i) for i in range(2500)]
    assert page["numMissing"] == 0
    answer = service.http.get("/v1/projects/local/jobs/talks/logEntries", params={"cursor": "x"})
    assert answer.status_code == 400


def test_an_entry_has_cloud_loggings_form_and_is_found_by_its_filter(service: Served, bench: Bench) -> None:
    bench.create("talks", "import logging; print('quiet'); logging.error('loud')")
    bench.step_until_over("talks")
    path = "/v1/projects/local/jobs/talks/logEntries"
    wanted = 'severity>=ERROR AND resource.labels.task_name="master-replica-0" AND textPayload:"LOUD"'
    page = service.http.get(path, params={"filter": wanted}).json()
    (entry,) = page["entries"]
    time = entry.pop("timestamp")
    assert entry.pop("insertId").startswith("000.master-replica-0.")
    assert entry == {
        "severity": "ERROR",
        "textPayload": "ERROR:root:loud",
        "resource": {
            "type": "ml_job",
            "labels": {"project_id": "local", "job_id": "talks", "task_name": "master-replica-0"},
        },
        "labels": {"attempt": "0", "stream": "stderr"},
    }
    assert (page["more"], page["complete"], page["numMissing"]) == (False, True, 0)
    at_its_time = service.http.get(path, params={"filter": f'timestamp="{time}" severity=ERROR'}).json()
    assert [found["textPayload"] for found in at_its_time["entries"]] == ["ERROR:root:loud"]
    refused = service.http.get(path, params={"filter": "severty=ERROR"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("filter: column 1; received 'severty'; did you mean")


def test_a_runtime_version_is_noted_in_the_jobs_events(service: Served) -> None:
    jobs = service.google().jobs()
    jobs.create(parent="projects/local", body=_body(runtimeVersion="2.4")).execute()
    events = service.http.get("/v1/projects/local/jobs/job_1/events").json()["events"]
    assert [event["kind"] for event in events] == ["enqueued", "ignored"]
    assert events[1]["detail"].startswith("trainingInput.runtimeVersion: 2.4 is ignored; ")


def test_events_tell_times_and_causes(service: Served, bench: Bench) -> None:
    bench.create("eventful", "pass")
    bench.step_until_over("eventful")
    events = service.http.get("/v1/projects/local/jobs/eventful/events").json()["events"]
    assert [event["state"] for event in events] == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)


def _make_ready(service: Served, name: str) -> None:
    models = service.context.models
    version = models.get_version(project="local", model="m", name=name)
    assert models.update_version(version, state=VersionState.READY)


def test_models_versions_and_their_default(service: Served) -> None:
    models = service.google().models()
    models.create(parent="projects/local", body={"name": "m"}).execute()
    operation = (
        models.versions()
        .create(parent="projects/local/models/m", body={"name": "v1", "deploymentUri": "/tmp/m"})
        .execute()
    )
    assert operation["metadata"]["operationType"] == "CREATE_VERSION"
    assert "done" not in operation
    assert service.google().operations().get(name=operation["name"]).execute()["name"] == operation["name"]
    assert "defaultVersion" not in models.get(name="projects/local/models/m").execute(), "it has not answered yet"
    with pytest.raises(HttpError, match="version v1 of m is CREATING, and answers no requests"):
        models.versions().setDefault(name="projects/local/models/m/versions/v1", body={}).execute()
    _make_ready(service, "v1")
    assert models.get(name="projects/local/models/m").execute()["defaultVersion"]["state"] == "READY"
    body = {"name": "v2", "deploymentUri": "/tmp/m"}
    models.versions().create(parent="projects/local/models/m", body=body).execute()
    _make_ready(service, "v2")
    assert models.get(name="projects/local/models/m").execute()["defaultVersion"]["name"].endswith("/v1")
    models.versions().setDefault(name="projects/local/models/m/versions/v2", body={}).execute()
    versions = models.versions().list(parent="projects/local/models/m").execute()["versions"]
    assert [(version["name"][-2:], version.get("isDefault", False)) for version in versions] == [
        ("v2", True),
        ("v1", False),
    ]
    with pytest.raises(HttpError) as caught:
        models.versions().delete(name="projects/local/models/m/versions/v2").execute()
    assert "version v2 has 100% of the traffic of m, and is its default; give it to others first" in str(caught.value)


def test_models_and_versions_are_listed_in_pages_and_filtered(service: Served) -> None:
    models = service.google().models()
    for number in range(5):
        labels = {"team": "ab"[number % 2]}
        models.create(parent="projects/local", body={"name": f"m{number}", "labels": labels}).execute()
        body = {"name": f"v{number}", "deploymentUri": f"/tmp/{number}", "labels": labels}
        models.versions().create(parent="projects/local/models/m0", body=body).execute()

    def names(resource: Any, kind: str, **query: Any) -> list[list[str]]:
        pages = []
        request = resource.list(**query)
        while request is not None:
            answer = request.execute()
            pages.append([found["name"].rpartition("/")[2] for found in answer[kind]])
            request = resource.list_next(request, answer)
        return pages

    parent = "projects/local"
    assert names(models, "models", parent=parent, pageSize=2) == [["m4", "m3"], ["m2", "m1"], ["m0"]]
    assert names(models, "models", parent=parent, filter="labels.team=b") == [["m3", "m1"]]
    parent = "projects/local/models/m0"
    versions = models.versions()
    assert names(versions, "versions", parent=parent, pageSize=3) == [["v4", "v3", "v2"], ["v1", "v0"]]
    assert names(versions, "versions", parent=parent, filter="deploymentUri:/tmp/3 AND state:CREATING") == [["v3"]]
    assert names(versions, "versions", parent=parent, filter="isDefault:true") == [[]]
    for resource, where in ((models, "projects/local"), (versions, parent)):
        with pytest.raises(HttpError, match="pageToken was not issued by this service"):
            resource.list(parent=where, pageToken="x").execute()
        with pytest.raises(HttpError, match="filter: column 1"):
            resource.list(parent=where, filter="colour:red").execute()


@pytest.mark.parametrize("machine_type", ["n1-standard-4", "n1-highmem-96"])
def test_a_machine_type_that_no_node_has_is_refused(service: Served, bench: Bench, machine_type: str) -> None:
    node = NodeSpec(name="node", node_type="node", resources={"vcpus": 8, "memory_mib": 32_768})
    bench.cluster.set_nodes((node,), in_use={})
    service.http.post("/v1/projects/local/models", json={"name": "m"})
    body = {"name": "v1", "deploymentUri": "/m", "machineType": machine_type}
    answer = service.http.post("/v1/projects/local/models/m/versions", json=body)
    if machine_type == "n1-standard-4":
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert "machineType: no prediction server could ever run" in answer.json()["error"]["message"]


def test_a_version_that_is_not_ready_says_so(service: Served) -> None:
    service.http.post("/v1/projects/local/models", json={"name": "m"})
    service.http.post("/v1/projects/local/models/m/versions", json={"name": "v1", "deploymentUri": "/m"})
    answer = service.http.post("/v1/projects/local/models/m:predict", json={"instances": []})
    assert answer.status_code == 503
    assert "the newest of its versions, v1, is CREATING" in answer.json()["error"]["message"]
    answer = service.http.post("/v1/projects/local/models/m/versions/v1:predict", json={"instances": []})
    assert answer.status_code == 503
    assert "none of its servers is ready" in answer.json()["error"]["message"]
    assert service.http.post("/v1/projects/local/models/x:predict", json={}).status_code == 404


def test_costs_of_jobs_that_are_over_and_of_those_that_run(service: Served, bench: Bench) -> None:
    bench.create("over", "print('x')")
    over = bench.step_until_over("over")
    bench.create("runs", "import time; time.sleep(600)")
    running = bench.step_until_state("runs", JobState.RUNNING)
    for job, hours in ((over, 2), (running, 1)):  # as if they had run for so long
        assert job.start_time_s is not None
        start_s = (job.end_time_s or time.time()) - 3600 * hours
        bench.store.update(job.uid, start_time_s=start_s, run_start_time_s=start_s)
    with bench.store._engine.begin() as connection:
        connection.execute(update(JOB_ATTEMPTS).values(start_time_s=JOB_ATTEMPTS.c.end_time_s - 7200))
    prefix = "/v1/projects/local"
    report = service.http.get(f"{prefix}/costs").json()
    assert [(row["name"], row["costUsd"][:5]) for row in report["rows"]] == [("over", "0.380"), ("runs", "0.190")]
    assert report["total"]["costUsd"][:5] == "0.570"
    shown = service.http.get(f"{prefix}/jobs/runs").json()["lockstep"]
    assert (shown["bill"], shown["accrued"]["text"]) == (None, "0.39 ML units, $0.1911")
    assert service.http.get("/v1/projects/other/costs").json()["rows"] == []
    later = service.http.get(f"{prefix}/costs", params={"since": "2100-01-01"}).json()
    assert later["rows"] == []
    for query in ({"by": "moon"}, {"since": "yesterday"}):
        refused = service.http.get(f"{prefix}/costs", params=query)
        assert (refused.status_code, refused.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_job_that_could_never_run_is_refused_with_the_reason(service: Served, bench: Bench) -> None:
    bench.settings = replace(bench.settings, quotas={"local": Quota(machines=2)})
    bench.restart()
    other = Served(bench)
    workers = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "workerType": "n1-standard-4", "workerCount": "2"}
    refused = other.http.post("/v1/projects/local/jobs", json=_body(**workers))
    other.close()
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message == "the job could never run: quota of project local: 3 machines asked for, 2 allowed"


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\u0000"', "NaN", "Infinity"])
def test_a_text_that_could_not_be_sent_back_is_refused(service: Served, text: str) -> None:
    body = '{"name": "m", "description": ' + text + "}"
    answer = service.http.post("/v1/projects/local/models", content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert service.http.get("/v1/projects/local/models").json() == {"models": []}
    fine = service.http.post("/v1/projects/local/models", content='{"name": "m", "description": "\\u00e4 \\\\u0000"}')
    assert fine.status_code == 200, fine.text


@pytest.mark.parametrize("encoding", ["surrogatepass", "utf-16", "utf-16-le", "utf-32"])
def test_a_body_that_is_not_utf_8_is_refused(service: Served, encoding: str) -> None:
    if encoding == "surrogatepass":
        body = '{"name": "m", "description": "\ud800"}'.encode(errors=encoding)
    else:
        body = '{"name": "m", "description": "\\u0000"}'.encode(encoding)
    answer = service.http.post("/v1/projects/local/models", content=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    assert error["message"].startswith("the request's body is not JSON: ")
    if encoding != "utf-16-le":  # these bytes are UTF-8 too, but not JSON
        assert "'utf-8' codec" in error["message"]
    assert service.http.get("/v1/projects/local/models").json() == {"models": []}
    marked = '{"name": "m", "description": "ä"}'.encode("utf-8-sig")
    assert service.http.post("/v1/projects/local/models", content=marked).json()["description"] == "ä"


TOKENS = {
    "huge": "[" + "9" * 400 + ', "x"]',
    "deep": "[" * 20_000,
    "surrogate": '[1, "half of a pair: \\ud800"]',
    "nul": '[1, "a\\u0000"]',
    "number": "[1, 2]",
    "short": "[1]",
}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("jobs", "pageToken"),
        ("operations", "pageToken"),
        ("jobs/job/artifacts", "pageToken"),
        ("jobs/job/logEntries", "cursor"),
        ("jobs/job/logEntries", "before"),
    ],
)
def test_a_token_that_nobody_gave_is_refused(service: Served, bench: Bench, path: str, name: str) -> None:
    bench.create("job", "pass")
    for kind, content in TOKENS.items():
        token = base64.urlsafe_b64encode(content.encode()).decode()
        answer = service.http.get(f"/v1/projects/local/{path}", params={name: token})
        assert answer.status_code == 400, (kind, answer.text)
        assert f"{name} was not issued by this service" in answer.json()["error"]["message"], kind


def test_who_asks_for_an_end_that_was_asked_for_already_changes_no_reason(service: Served, bench: Bench) -> None:
    uid = bench.create("job", "pass").uid
    bench.store.advance(uid, JobEvent.CANCEL_REQUESTED, detail="too long", end_reason="MAX_RUNNING_TIME")
    assert service.http.post("/v1/projects/local/jobs/job:cancel").json() == {}
    assert bench.job("job").end_reason == "MAX_RUNNING_TIME"


def test_whoever_waits_for_a_versions_server_keeps_nobody_else(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, goes_on = threading.Event(), threading.Event()

    def get_traffic(_self: ModelStore, **_asked: str) -> Traffic:
        looking.set()
        goes_on.wait(10)
        raise UnavailableError("not ready")

    monkeypatch.setattr(ModelStore, "get_traffic", get_traffic)
    answers: list[int] = []

    def predict() -> None:
        with service.client(HOME_TOKEN) as client:
            path = "/v1/projects/local/models/m:predict"
            answers.append(client.post(path, json={"instances": []}, timeout=20).status_code)

    predicting = threading.Thread(target=predict)
    predicting.start()
    try:
        assert looking.wait(10)
        assert service.http.get("/healthz", timeout=5).status_code == 200
    finally:
        goes_on.set()
        predicting.join()
    assert answers == [503]


@pytest.mark.parametrize("query", ["", "?validateOnly=true"])
def test_what_would_be_told_a_thousand_times_is_not_long(service: Served, query: str) -> None:
    workers = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "workerType": "n1-standard-4"}

    def submit(length: int, *, num_workers: int) -> httpx.Response:
        asked = {**workers, "workerCount": str(num_workers), "pythonModule": "train", "args": ["x" * length]}
        return service.http.post(f"/v1/projects/local/jobs{query}", json={"jobId": "job", "trainingInput": asked})

    answer = submit(70_000, num_workers=999)
    assert answer.status_code == 400, answer.status_code
    assert "too large for 1000 replicas" in answer.json()["error"]["message"]
    assert submit(70_000, num_workers=9).status_code == 200


@pytest.mark.parametrize("kind", ["application/xml", "text/plain", "application/x-www-form-urlencoded", "text/json"])
@pytest.mark.parametrize("path", ["jobs", "models", "models/m:predict", "models/m/versions"])
def test_a_body_that_is_said_to_be_no_json_is_refused(path: str, kind: str, service: Served) -> None:
    service.http.post("/v1/projects/local/models", json={"name": "m"})
    answer = service.http.post(f"/v1/projects/local/{path}", content=b'{"name": "n"}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert answer.json()["error"]["message"].startswith(f"the request's Content-Type; received '{kind}'")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json", None])
def test_a_body_that_may_be_json_is_read(kind: str | None, service: Served) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert service.http.post("/v1/projects/local/models", content=b'{"name": "n"}', headers=headers).status_code == 200
