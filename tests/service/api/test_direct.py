"""Requests for predictions pass FastAPI by, and are answered as the application itself answers them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from lockstep.jobs.security.access import Scope as KeyScope
from lockstep.testing.served import HOME_TOKEN, Served

PROJECT = "/v1/projects/local"
MODEL = f"{PROJECT}/models/digits"
DIRECT = (
    f"{MODEL}:predict",
    f"{MODEL}/versions/v1:predict",
    f"{PROJECT}/locations/here/endpoints/digits:predict",
    f"{PROJECT}/locations/here/endpoints/digits:rawPredict",
    f"{PROJECT}/v2/models/digits/infer",
    f"{PROJECT}/v2/models/digits/versions/v1/infer",
)


class Passed:
    """Stands for the application, and notes what reaches it."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.state = app.state
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        await self.app(scope, receive, send)


def test_only_other_requests_reach_the_application(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Passed(service.app)
    monkeypatch.setattr(service.front._served, "_app", passed)
    for path in DIRECT:
        assert service.http.post(path, json={"instances": [1]}).status_code == 404, path
    assert passed.paths == []
    others = (("GET", f"{PROJECT}/jobs"), ("GET", f"{MODEL}:predict"), ("POST", f"{MODEL}:predict/more"))
    for method, path in others:
        service.http.request(method, path)
    assert passed.paths == [path for _, path in others]


def test_both_ways_answer_alike(service: Served) -> None:
    service.context.models.create_model(project="local", name="digits", description="", labels={})
    service.context.models.create_version(
        project="local", model="digits", name="v1", description="", labels={}, deployment_uri="/m", machine_type="n1"
    )
    keys = {
        "home": HOME_TOKEN,
        "another project": service.key(KeyScope.OPERATOR, project="other"),
        "another model": service.key(KeyScope.CALLER, project="local", model="letters"),
        "no key": "lsk_nothing",
    }
    paths = (
        *DIRECT,
        f"{PROJECT}/models/none:predict",
        f"{PROJECT}/models/no%20name:predict",
        "/v1/projects/a.b/models/d:predict",
    )
    bodies: tuple[dict[str, Any], ...] = (
        {"json": {"instances": [1]}},
        {"content": b"{"},
        {"content": b"", "headers": {"content-type": "text/csv"}},
    )

    async def ask_application(path: str, token: str, body: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(app=service.app, client=("127.0.0.1", 1))
        headers = {"authorization": f"Bearer {token}", **body.get("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url=service.url) as client:
            return await client.post(path, **{**body, "headers": headers})

    for who, token in keys.items():
        for path in paths:
            for body in bodies:
                with service.client(token) as client:
                    direct = client.post(path, **body)
                other = asyncio.run(ask_application(path, token, body))
                case = (who, path, body)
                assert (direct.status_code, direct.json()) == (other.status_code, other.json()), case
                assert direct.headers.get("www-authenticate") == other.headers.get("www-authenticate"), case
                assert direct.headers["cache-control"] == other.headers["cache-control"], case
