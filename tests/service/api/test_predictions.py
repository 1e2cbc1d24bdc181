"""Requests for predictions, which the service sends on to prediction servers."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import wait_until

from lockstep.jobs.running.orders import ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import Quota
from lockstep.jobs.security.access import Scope
from lockstep.service.api.requests import MAX_INSTANCES_BYTES
from lockstep.service.prediction.routing import Route, Routes, ServerAddress
from lockstep.service.store import JobKind, JobRecord, JobStore, ReplicaRecord, ScalingPolicy, VersionState
from lockstep.serving.batch_counts import BatchCounts
from lockstep.testing.served import Served


def route_to(servers: list[ServerAddress], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has version v3 answer all requests, by these servers."""

    async def route(_self: Routes, **_asked: str | None) -> Route:
        return Route(version="v3", servers=servers)

    monkeypatch.setattr(Routes, "route", route)


@pytest.mark.parametrize("first", ["closed", "full"])
def test_a_server_that_cannot_be_reached_is_passed_over(
    service: Served, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"predictions": [7]}')

    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = silent.getsockname()
        if first == "closed":
            silent.close()
        else:  # as behind a node that is gone, nobody accepts
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(address)
        answers = stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Answers))
        thread = threading.Thread(target=answers.handle_request)
        thread.start()
        ports = (address[1], answers.server_port)
        found = [
            ServerAddress(uid=str(port), version_uid="v", url=f"http://127.0.0.1:{port}", token="t") for port in ports
        ]
        route_to(found, monkeypatch)
        path = "/v1/projects/local/models/m:predict"
        answer = service.http.post(path, json={"instances": [1]}, timeout=20)
        assert answer.json() == {"predictions": [7]}, answer.text
        assert answer.headers["x-lockstep-version"] == "v3"
        thread.join()


def test_a_server_gets_the_time_that_the_client_waits_and_the_client_the_time_to_retry_after(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[str | None] = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.headers["x-server-timeout"])
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(429)
            self.send_header("retry-after", "3")
            self.end_headers()
            self.wfile.write(b'{"error": "busy"}')

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as answers:
        thread = threading.Thread(target=answers.handle_request)
        thread.start()
        found = [ServerAddress(uid="s", version_uid="v", url=f"http://127.0.0.1:{answers.server_port}", token="t")]
        route_to(found, monkeypatch)
        path = "/v1/projects/local/models/m:predict"
        answer = service.http.post(path, json={"instances": [1]}, headers={"X-Server-Timeout": "7"}, timeout=20)
        thread.join()
    (seconds,) = received
    assert seconds is not None
    assert 0 < float(seconds) <= 7, "the time that is left"
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (429, "3", {"error": "busy"})


def test_a_held_request_is_answered_by_another_version_if_the_traffic_left_the_one_that_is_deleted(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"predictions": [7]}')

    models, name = service.context.models, {"project": "local", "model": "m"}
    models.create_model(project="local", name="m", description="", labels={})
    for version in ("v1", "v2"):
        policy = ScalingPolicy(min_servers=0, max_servers=1)
        given: dict[str, Any] = {"description": "", "labels": {}, "deployment_uri": "/m", "machine_type": "t"}
        models.create_version(**name, name=version, scaling=policy, **given)
        assert models.update_version(models.get_version(**name, name=version), state=VersionState.READY)
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as answers, ThreadPoolExecutor(2) as pool:
        pool.submit(answers.handle_request)
        server = ServerAddress(uid="s", version_uid="v", url=f"http://127.0.0.1:{answers.server_port}", token="t")
        servers = {models.get_version(**name, name="v2").uid: [server]}
        monkeypatch.setattr(service.context.routes, "_read", lambda **_since: servers)
        path = "/v1/projects/local/models/m:predict"
        sent = pool.submit(service.http.post, path, json={"instances": [1]}, timeout=20)
        wait_until(lambda: service.context.waking._num_held == 1)
        models.set_default(**name, name="v2", changed_by="ann")
        models.begin_delete_version(**name, name="v1")
        answer = sent.result(20)
    assert (answer.json(), answer.headers["x-lockstep-version"]) == ({"predictions": [7]}, "v2")


@pytest.mark.parametrize("waits_for", ["a server that has stopped", "a server that starts"])
def test_a_client_that_waits_for_a_limited_time_is_answered_by_then(
    service: Served, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    models, name = service.context.models, {"project": "local", "model": "m"}
    models.create_model(project="local", name="m", description="", labels={})
    given: dict[str, Any] = {"description": "", "labels": {}, "deployment_uri": "/m", "machine_type": "t"}
    models.create_version(**name, name="v1", scaling=ScalingPolicy(min_servers=0, max_servers=1), **given)
    assert models.update_version(models.get_version(**name, name="v1"), state=VersionState.READY)
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # it accepts connections, and answers nothing
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        if waits_for == "a server that has stopped":
            server = ServerAddress(uid="s", version_uid="v", url=url, token="t")
            servers = {models.get_version(**name, name="v1").uid: [server]}
            monkeypatch.setattr(service.context.routes, "_read", lambda **_since: servers)
        headers = {"X-Server-Timeout": "0.5"}
        answer = service.http.post(
            "/v1/projects/local/models/m:predict", json={"instances": [1]}, headers=headers, timeout=20
        )
    assert answer.status_code == 504, answer.text
    assert answer.json()["error"]["message"] == "no prediction within 0.5 s (X-Server-Timeout); try again later"
    errors = _samples(service)["lockstep_prediction_errors"]
    assert [(each.labels["version"], each.labels["kind"]) for each in errors] == [("v1", "deadline")]


def test_a_time_that_is_none_is_refused(service: Served) -> None:
    answer = service.http.post(
        "/v1/projects/local/models/m:predict", json={"instances": [1]}, headers={"X-Server-Timeout": "soon"}
    )
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == "X-Server-Timeout; received 'soon'; allowed: a number of seconds"


PREDICT = "/v1/projects/local/models/digits:predict"


@pytest.fixture
def digits(service: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model whose only server answers each request with as many ones; yields the uid of its version."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            instances = json.loads(self.rfile.read(int(self.headers["content-length"])))["instances"]
            body = {"predictions": [1] * len(instances)} if instances else {"error": "no instances"}
            content = json.dumps(body).encode()
            self.send_response(200 if instances else 400)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    service.http.post("/v1/projects/local/models", json={"name": "digits"})
    logging = {"requestLogging": {"samplingPercentage": 1}}
    version = {"name": "v1", "deploymentUri": "/x", "lockstep": logging}
    assert service.http.post("/v1/projects/local/models/digits/versions", json=version).status_code == 200
    uid = service.context.models.get_version(project="local", model="digits", name="v1").uid
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as answers:
        thread = threading.Thread(target=answers.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{answers.server_port}"
        found = [ServerAddress(uid="s", url=url, token="t", version_uid=uid)]

        async def route(_self: Routes, **_asked: object) -> Route:
            return Route(version="v1", servers=found)

        monkeypatch.setattr(Routes, "route", route)
        yield uid
        answers.shutdown()
        thread.join()


def _samples(service: Served, *, key: str | None = None) -> dict[str, list[Any]]:
    client = service.http if key is None else service.client(key)
    return {family.name: family.samples for family in text_string_to_metric_families(client.get("/metrics").text)}


@pytest.mark.usefixtures("digits")
def test_a_key_that_asks_too_often_gets_429_and_the_time_to_retry_after(service: Served) -> None:
    key = service.key(Scope.CALLER, project="local", model="digits", label="shop", requests_per_second=0.01)
    shop = service.client(key)
    assert shop.post(PREDICT, json={"instances": [1]}).json() == {"predictions": [1]}
    refused = shop.post(PREDICT, json={"instances": [1]})
    assert refused.status_code == 429
    assert 90 <= int(refused.headers["retry-after"]) <= 100
    error = refused.json()["error"]
    assert error["message"].startswith("too many requests with the key of shop; allowed: 0.01 a second")
    assert (error["status"], error["details"][0]["reason"]) == ("RESOURCE_EXHAUSTED", "RATE_LIMIT")
    other = service.client(service.key(Scope.CALLER, project="local", model="digits", requests_per_second=0.01))
    assert other.post(PREDICT, json={"instances": [1]}).status_code == 200, "another key"
    assert service.http.post(PREDICT, json={"instances": [1]}).status_code == 200, "a key without a rate"


@pytest.mark.usefixtures("digits")
def test_a_project_has_a_rate_for_all_of_its_keys(service: Served) -> None:
    quotas = {"local": Quota(requests_per_second=0.01)}
    object.__setattr__(service.context.settings, "quotas", quotas)
    caller = service.client(service.key(Scope.CALLER, project="local", model="digits"))
    answers = [client.post(PREDICT, json={"instances": [1]}) for client in (caller, service.http)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert "too many requests with the keys of project local; allowed: 0.01 a second" in answers[1].text


@pytest.mark.usefixtures("digits")
def test_a_request_that_is_too_large_is_refused_in_one_line(service: Served) -> None:
    answer = service.http.post(PREDICT, content=b" " * (MAX_INSTANCES_BYTES + 1))
    assert answer.status_code == 413
    assert (
        answer.json()["error"]["message"]
        == f"the request's body is too large; allowed: {MAX_INSTANCES_BYTES} bytes at most"
    )


@pytest.mark.usefixtures("digits")
def test_prometheus_gets_requests_errors_and_latencies_by_version(service: Served) -> None:
    for instances in ([1], [1, 2], []):
        service.http.post(PREDICT, json={"instances": instances})
    families = _samples(service)
    version = {"project": "local", "model": "digits", "version": "v1"}
    requests = {sample.labels["code"]: sample for sample in families["lockstep_prediction_requests"]}
    assert {code: sample.value for code, sample in requests.items()} == {"2xx": 2, "4xx": 1}
    assert requests["2xx"].labels == {**version, "code": "2xx"}
    (error,) = families["lockstep_prediction_errors"]
    assert (error.labels, error.value) == ({**version, "kind": "invalid_request"}, 1)
    latency = families["lockstep_prediction_request_seconds"]
    buckets = [sample for sample in latency if sample.name.endswith("_bucket")]
    assert [sample.value for sample in buckets] == sorted(sample.value for sample in buckets)
    assert (buckets[-1].labels["le"], buckets[-1].value) == ("+Inf", 3)
    (total_s,) = [sample.value for sample in latency if sample.name.endswith("_sum")]
    assert 0 < total_s < 60
    (wanted,) = families["lockstep_prediction_servers_wanted"]
    (ready,) = families["lockstep_prediction_servers_ready"]
    assert (wanted.labels, wanted.value, ready.value) == (version, 1, 0)
    own = _samples(service, key=service.key(Scope.VIEWER, project="local"))
    assert own["lockstep_prediction_requests"] == families["lockstep_prediction_requests"]
    others = _samples(service, key=service.key(Scope.VIEWER, project="other"))
    shown = [name for name, samples in others.items() if name.startswith("lockstep_prediction") and samples]
    assert shown == []


def test_a_sampled_request_is_written_to_the_folder_of_the_project(service: Served, digits: str) -> None:
    service.context.request_logs.step()
    assert service.context.request_logs.sample(digits) is not None
    assert service.http.post(PREDICT, json={"instances": [[1, 2]]}).status_code == 200
    assert service.http.post(PREDICT, json={"instances": []}).status_code == 400
    service.context.request_logs.step(ends=True)
    folder = Path(service.context.settings.bucket, "local", "request-logs", "digits", "v1")
    lines = [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert [(line["status"], line["request"], line["response"]) for line in lines] == [
        (200, {"instances": [[1, 2]]}, {"predictions": [1]}),
        (400, {"instances": []}, {"error": "no instances"}),
    ]
    assert all(line["latency_s"] > 0 for line in lines)
    (written,) = _samples(service)["lockstep_prediction_logged_requests"]
    assert written.value == 2


def test_prometheus_gets_what_prediction_servers_report(
    service: Served, digits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = BatchCounts()
    for size in (1, 1, 3, 100):
        batches.add(size)
    reported = {"open": 5.0, "waiting": 3.0, "requests": 40.0, "busySeconds": 7.5, **batches.to_metrics()}

    def server(name: str, *, is_ready: bool, drain_time_s: float | None = None) -> JobRecord:
        status = ReplicaStatus(
            name="master-replica-0",
            phase=ReplicaPhase.RUNNING,
            ready_time_s=1.0 if is_ready else None,
            progress=Progress(time_s=1.0, metrics=reported),
        )
        return JobRecord(
            uid=name,
            project="local",
            job_id=f"digits/v1/{name}",
            kind=JobKind.SERVER,
            version_uid=digits,
            training_input={},
            labels={},
            state=JobState.RUNNING,
            version=1,
            create_time_s=0.0,
            replicas=(ReplicaRecord(status=status, machine_type="n1-standard-4"),),
            drain_time_s=drain_time_s,
        )

    servers = [server("a", is_ready=True), server("b", is_ready=False), server("c", is_ready=True, drain_time_s=1.0)]
    monkeypatch.setattr(JobStore, "servers", lambda _self: servers)
    families = _samples(service)
    (ready,) = families["lockstep_prediction_servers_ready"]
    assert ready.value == 1
    for name, value in (
        ("open_requests", 5),
        ("queue_length", 3),
        ("requests", 40),
        ("busy_seconds", 7.5),
    ):
        samples = families[f"lockstep_prediction_server_{name}"]
        assert [sample.value for sample in samples] == [value, value]
        labels = {"project": "local", "model": "digits", "version": "v1"}
        assert [sample.labels for sample in samples] == [{**labels, "server": "a"}, {**labels, "server": "c"}]
    sizes = [each for each in families["lockstep_prediction_server_batch_size"] if each.labels["server"] == "a"]
    buckets = {each.labels["le"]: each.value for each in sizes if each.name.endswith("_bucket")}
    assert buckets == {"1": 2, "2": 2, "4": 3, "8": 3, "16": 3, "32": 3, "64": 3, "+Inf": 4}
    assert [each.value for each in sizes if not each.name.endswith("_bucket")] == [4, 105]


def test_a_request_that_waits_for_a_server_is_counted_with_its_version(service: Served) -> None:
    service.http.post("/v1/projects/local/models", json={"name": "digits"})
    service.http.post("/v1/projects/local/models/digits/versions", json={"name": "v1", "deploymentUri": "/x"})
    path = "/v1/projects/local/models/digits/versions/v1:predict"
    assert service.http.post(path, json={"instances": [1]}).status_code == 503
    assert service.http.post("/v1/projects/local/models/none:predict", json={"instances": [1]}).status_code == 404
    found = {
        (sample.labels["model"], sample.labels["version"], sample.labels["kind"]): sample.value
        for sample in _samples(service)["lockstep_prediction_errors"]
    }
    assert found == {("digits", "v1", "unavailable"): 1, ("", "", "not_found"): 1}
