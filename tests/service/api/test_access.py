"""Every route of the application, walked with keys that may use it and with keys that may not."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx
import pytest
from fastapi import WebSocket
from fastapi.routing import iter_route_contexts
from google.auth.exceptions import RefreshError
from googleapiclient.errors import HttpError

from lockstep.jobs.security.access import ALL_PROJECTS, Scope
from lockstep.service.api import sockets
from lockstep.service.api.access import PUBLIC_PATHS, required_scope, requires_scope
from lockstep.service.api.refusals import CONTRACT
from lockstep.service.api.vertex.refusals import VERTEX
from lockstep.service.store import VersionState
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

CALLER, VIEWER, SUBMITTER, OPERATOR = Scope
UNAUTHENTICATED, FORBIDDEN, MISSING = 401, 403, 404
LOCATION = "us-central1"


@dataclass(frozen=True, kw_only=True)
class Route:
    """A method and a path of the application."""

    method: str
    path: str
    needed: Scope | None

    @property
    def end(self) -> str:
        """The path behind the project."""
        return self.path.rpartition("{project}")[2]

    def send(self, client: httpx.Client, names: dict[str, str]) -> httpx.Response:
        """Sends a request of which nothing but the names in its path matters."""
        path = re.sub(r"{(\w+)(?::path)?}", lambda match: names.get(match[1], "x1"), self.path)
        body = {} if self.method in ("POST", "PATCH", "PUT") else None
        method = "GET" if self.method == "WEBSOCKET" else self.method
        at_once = {"timeout": "0s"} if path.endswith(":wait") else None
        return client.request(method, path, params=at_once, json=body)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A served application with a job, a model, a version and an operation in project b."""

    service: Served
    routes: list[Route]
    names: dict[str, str]

    @property
    def of_projects(self) -> list[Route]:
        return [route for route in self.routes if "{project}" in route.path]

    def in_project(self, project: str, **names: str) -> dict[str, str]:
        return {**self.names, "project": project, **names}

    def client(self, scope: Scope, *, project: str = ALL_PROJECTS) -> httpx.Client:
        return self.service.client(self.service.key(scope, project=project))


def _fill(service: Served, project: str, job: str) -> str:
    """Puts one of each thing into a project; returns its operation's name."""
    body = {"jobId": job, "trainingInput": {"pythonModule": "train"}, "labels": {"of": job}}
    assert service.http.post(f"/v1/projects/{project}/jobs", json=body).status_code == 200
    assert service.http.post(f"/v1/projects/{project}/models", json={"name": f"m_{job}"}).status_code == 200
    secret = service.http.put(f"/v1/projects/{project}/secrets/{job}", json={"value": f"value of {job}"})
    assert secret.status_code == 200
    version = {"name": "v1", "deploymentUri": f"/{job}"}
    made = service.http.post(f"/v1/projects/{project}/models/m_{job}/versions", json=version)
    upload = {"model": {"displayName": f"m_{job}", "artifactUri": f"/{job}"}}
    uploaded = service.http.post(f"/v1/projects/{project}/locations/{LOCATION}/models:upload", json=upload)
    assert uploaded.status_code == 200, uploaded.text
    return made.json()["name"].rpartition("/")[2]


def _rpc_status(answer: httpx.Response, route: Route) -> str:
    """Returns the status in an error. In the Open Inference Protocol, only the HTTP status stands for it."""
    error = answer.json()["error"]
    if "/{project}/v2" not in route.path:
        return error["status"]
    assert isinstance(error, str)
    return {UNAUTHENTICATED: "UNAUTHENTICATED", FORBIDDEN: "PERMISSION_DENIED"}[answer.status_code]


@pytest.fixture
def walk(service: Served) -> Walk:
    operation = _fill(service, "b", "hidden")
    _fill(service, "a", "plain")
    routes = [
        Route(method=method, path=context.path, needed=required_scope(context.endpoint))
        for context in iter_route_contexts(service.app.routes)
        for method in sorted(context.methods or ["WEBSOCKET"])
        if context.path is not None and context.endpoint is not None
    ]
    names = {"job_id": "hidden", "model": "m_hidden", "version": "v1", "operation": operation}
    names |= {"key": "lsk_0", "secret": "hidden", "location": LOCATION}
    names |= {"webhook": "ops", "number": "0"}
    return Walk(service=service, routes=routes, names=names)


REFUSED = {refusal.path for refusal in (*CONTRACT, *VERTEX)}
"""The routes of methods that are refused, by their ends. They neither show nor change anything."""
OF_MODELS = {
    "/models/{model}:predict",
    "/v2/models/{model}",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/infer",
    "/locations/{location}/endpoints/{model}:predict",
    "/locations/{location}/endpoints/{model}:rawPredict",
}
"""The routes that callers may use, by their ends: those at which the traffic chooses the version, and the others."""
OF_VERSIONS = {
    "/models/{model}/versions/{version}:predict",
    "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/ready",
    "/v2/models/{model}/versions/{version}/infer",
}


def test_every_route_says_who_may_use_it(walk: Walk) -> None:
    assert len(walk.routes) > 20
    assert [route for route in walk.routes if route.needed is None and route.path not in PUBLIC_PATHS] == []
    asking = (":predict", ":rawPredict", "/infer", ":wait", "console:link")  # the last one signs in as who asks
    honoured = [route for route in walk.routes if route.end not in REFUSED]
    changing = [route for route in honoured if route.method != "GET" and not route.path.endswith(asking)]
    assert [route for route in changing if route.needed in (CALLER, VIEWER)] == [], "who looks changes nothing"
    of_callers = {route.end for route in honoured if route.needed is CALLER}
    assert of_callers == OF_MODELS | OF_VERSIONS
    elsewhere = {route.path for route in walk.routes} - {route.path for route in walk.of_projects}
    assert {"/healthz", "/v1/whoami", "/v1/service", "/v1/keys", "/v1/keys/{key}:revoke"} <= elsewhere


def test_no_route_is_open_without_a_key_that_is_valid(walk: Walk) -> None:
    service = walk.service
    revoked = service.key(OPERATOR)
    service.context.keys.revoke(revoked[:16], principal_label="test")
    expired = service.key(OPERATOR, expire_time_s=time.time() - 1)
    valid = service.key(OPERATOR)
    other = service.key(OPERATOR)
    for token in (
        None,
        "wrong",
        revoked,
        expired,
        valid[:-1],
        valid[:16],
        valid[:17] + other[17:],
        HOME_TOKEN[:-1],
    ):
        client = service.client(token)
        for route in [*walk.routes, Route(method="GET", path="/v1/nowhere", needed=None)]:
            answer = route.send(client, walk.in_project("b"))
            if route.path in PUBLIC_PATHS:
                assert answer.status_code == 200
                continue
            assert answer.status_code == UNAUTHENTICATED, (route, token)
            assert _rpc_status(answer, route) == "UNAUTHENTICATED"
    assert "expired at" in service.client(expired).get("/v1/whoami").json()["error"]["message"]
    assert "was revoked at" in service.client(revoked).get("/v1/whoami").json()["error"]["message"]


def test_another_projects_things_are_answered_for_as_things_that_are_not_there(walk: Walk) -> None:
    jobs, models = walk.service.context.jobs, walk.service.context.models

    def recorded() -> Any:
        return jobs.get_by_uids([job.uid for job in jobs.unfinished()]), models.list_versions()

    before = recorded()
    nothing = {name: f"{value}0" for name, value in walk.names.items()}
    operator = walk.client(OPERATOR, project="a")
    caller = walk.service.client(walk.service.key(CALLER, project="a", model="m_hidden", version="v1"))
    for client, route in product((operator, caller), walk.of_projects):
        there = route.send(client, walk.in_project("b"))
        missing = route.send(client, walk.in_project("b", **nothing))
        assert there.status_code == MISSING, route
        assert there.content == missing.content, route
        nowhere = route.send(client, walk.in_project("c"))
        assert nowhere.content == there.content.replace(b"'b'", b"'c'"), route
    assert recorded() == before


def test_a_scope_opens_the_routes_that_need_it_or_less(walk: Walk) -> None:
    for project in ("b", ALL_PROJECTS):
        for scope in (VIEWER, SUBMITTER, OPERATOR):
            client = walk.client(scope, project=project)
            for route in walk.routes:
                if route.needed is None or route.method == "WEBSOCKET":  # test_shell_route.py opens those
                    continue
                answer = route.send(client, walk.in_project("b", job_id="nobody", model="nobody"))
                everywhere = "{project}" in route.path or project == ALL_PROJECTS or route.needed is VIEWER
                if scope.includes(route.needed) and everywhere:
                    assert answer.status_code not in (UNAUTHENTICATED, FORBIDDEN), (route, scope, project)
                else:
                    assert answer.status_code == FORBIDDEN, (route, scope, project)
                    assert _rpc_status(answer, route) == "PERMISSION_DENIED"


@pytest.mark.parametrize("version", [None, "v1"])
def test_a_callers_key_predicts_with_its_model_and_opens_nothing_else(walk: Walk, version: str | None) -> None:
    key = walk.service.key(CALLER, project="b", label="shop", model="m_hidden", version=version)
    client = walk.service.client(key)
    opened: set[str] = set()
    for route in walk.routes:
        if route.path in PUBLIC_PATHS or route.method == "WEBSOCKET":  # the test of WebSockets opens those
            continue
        answer = route.send(client, walk.in_project("b"))
        if answer.status_code == FORBIDDEN:
            name = "m_hidden" if version is None else "m_hidden/versions/v1"
            error = answer.json()["error"]
            message = error if isinstance(error, str) else error["message"]
            assert f"use it for projects/b/models/{name}:predict" in message, route
            assert walk.service.context.settings.bucket not in answer.text
        elif route.end in REFUSED:
            assert answer.status_code == 501, (route, answer.text)
        else:
            assert answer.status_code == 503, (route, answer.text)  # the version is CREATING
            opened.add(route.end)
    assert opened == (OF_MODELS | OF_VERSIONS if version is None else OF_VERSIONS)


def test_a_callers_key_does_not_tell_which_other_models_and_versions_there_are(walk: Walk) -> None:
    http, prefix = walk.service.http, "/v1/projects/b/models"
    assert http.post(prefix, json={"name": "m_other"}).status_code == 200
    for path in ("m_hidden/versions", "m_other/versions"):
        assert http.post(f"{prefix}/{path}", json={"name": "v2", "deploymentUri": "/x"}).status_code == 200
    key = walk.service.key(CALLER, project="b", model="m_hidden", version="v1")
    client = walk.service.client(key)
    for there, missing in (
        ("m_other:predict", "m_never:predict"),
        ("m_other/versions/v2:predict", "m_never/versions/v2:predict"),
        ("m_hidden/versions/v2:predict", "m_hidden/versions/v9:predict"),
    ):
        found, nothing = (client.post(f"{prefix}/{path}", json={"instances": []}) for path in (there, missing))
        assert found.status_code == nothing.status_code == MISSING, there
        assert found.text.replace("m_other", "m_never").replace("v2", "v9") == nothing.text.replace("v2", "v9")


def test_what_a_project_shows_is_its_own(walk: Walk) -> None:
    client = walk.client(OPERATOR, project="a")
    seen = ""
    for route in walk.routes:
        if route.method == "GET":
            seen += route.send(client, walk.in_project("a", job_id="plain", model="m_plain")).text
    assert "plain" in seen
    assert "hidden" not in seen


def test_googles_client_works_with_a_key_of_a_project(walk: Walk) -> None:
    key = walk.service.key(SUBMITTER, project="a", label="ann@example.com")
    jobs = walk.service.google(key).jobs()
    body = {"jobId": "made", "trainingInput": {"pythonModule": "train"}}
    created = jobs.create(parent="projects/a", body=body).execute()
    assert created["lockstep"]["submittedBy"] == "ann@example.com"
    jobs.cancel(name="projects/a/jobs/made", body={}).execute()
    with pytest.raises(HttpError) as caught:
        jobs.get(name="projects/b/jobs/hidden").execute()
    assert caught.value.status_code == MISSING
    walk.service.context.keys.revoke(key[:16], principal_label="test")
    with pytest.raises(RefreshError):
        jobs.list(parent="projects/a").execute()


def test_who_submitted_and_who_cancelled_stands_in_the_job(walk: Walk, bench: Bench) -> None:
    ann = walk.service.client(walk.service.key(SUBMITTER, project="b", label="ann"))
    bob = walk.service.client(walk.service.key(SUBMITTER, project="b", label="bob"))
    ann.post("/v1/projects/b/jobs", json={"jobId": "hers", "trainingInput": {"pythonModule": "train"}})
    bob.post("/v1/projects/b/jobs/hers:cancel")
    found = ann.get("/v1/projects/b/jobs/hers").json()["lockstep"]
    assert (found["submittedBy"], found["endReason"]) == ("ann", "CANCELLED(by bob)")
    events = ann.get("/v1/projects/b/jobs/hers/events").json()["events"]
    assert [event["detail"] for event in events] == ["submitted by ann", "cancelled by bob"]


def test_a_route_that_does_not_say_who_may_use_it_is_nobodys(service: Served) -> None:
    async def undeclared() -> str:
        return "anything"

    service.app.add_api_route("/v1/undeclared", undeclared)
    answer = service.client(service.key(OPERATOR)).get("/v1/undeclared")
    assert answer.status_code == FORBIDDEN
    assert "declares no scope" in answer.json()["error"]["message"]


async def _connect() -> dict[str, Any]:
    return {"type": "websocket.connect"}


def _talk(app: Any, path: str, *, token: str, receive: Any = _connect) -> list[dict[str, Any]]:
    """Opens a WebSocket as a server would; returns what the application sends."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b"", "scheme": "ws"}
    asyncio.run(app({**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}, receive, send))
    return sent


def test_websockets_pass_the_same_gate(service: Served) -> None:
    @requires_scope(SUBMITTER)
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("welcome")

    service.app.add_api_websocket_route("/v1/projects/{project}/talk", talk)
    _, said = _talk(service.app, "/v1/projects/a/talk", token=service.key(SUBMITTER, project="a"))
    assert said["text"] == "welcome"
    names = {"project": "a", "replica": "master-replica-0"}
    for context in iter_route_contexts(service.app.routes):
        if context.path is None or context.methods:
            continue
        path = re.sub(r"{(\w+)}", lambda match: names.get(match[1], "x1"), context.path)
        caller = service.key(CALLER, project="a", model="x1")
        for token in ("wrong", caller, service.key(VIEWER, project="a"), service.key(OPERATOR, project="b")):
            (closed,) = _talk(service.app, path, token=token)
            assert (closed["type"], closed["code"]) == ("websocket.close", 1008), (path, token)


def test_a_websocket_ends_when_its_key_is_revoked(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CHECK_INTERVAL_S", 0.01)
    key = service.key(SUBMITTER, project="a")
    codes: list[int] = []

    @requires_scope(SUBMITTER)
    async def listen(socket: WebSocket) -> None:
        await socket.accept()
        service.context.keys.revoke(key[:16], principal_label="test")
        codes.append((await socket.receive())["code"])

    service.app.add_api_websocket_route("/v1/projects/{project}/listen", listen)
    messages = iter([{"type": "websocket.connect"}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        return await asyncio.Future()

    _talk(service.app, "/v1/projects/a/listen", token=key, receive=receive)
    assert codes == [1008]


def test_a_versions_server_is_asked_only_for_its_own_project(walk: Walk) -> None:
    models = walk.service.context.models
    record = models.get_version(project="b", model="m_hidden", name="v1")
    models.update_version(record, state=VersionState.FAILED, error_message="hidden reason")
    for path in ("m_hidden:predict", "m_hidden/versions/v1:predict"):
        answer = walk.client(OPERATOR, project="a").post(f"/v1/projects/b/models/{path}", json={"instances": []})
        assert answer.status_code == MISSING
        assert "hidden" not in answer.text
        own = walk.client(VIEWER, project="b").post(f"/v1/projects/b/models/{path}", json={"instances": []})
        assert "hidden reason" in own.text
