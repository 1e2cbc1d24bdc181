"""Requests that nobody thought of, made from the interface's own schema: answers of the declared forms, never a 500."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lockstep.service.api.vertex import operations
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

KNOWN = {"project": "local", "job_id": "j", "model": "m", "version": "v", "secret": "s", "location": "us-central1"}
"""What is there: a request for what is not comes no further than that."""

INFERENCE = "/projects/{project}/v2"
"""A part of the paths of the Open Inference Protocol, which has errors of its own form."""

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


def _schema(app: FastAPI) -> Any:
    """Returns the interface's schema; bodies are read by hand, so it has none."""
    document = copy.deepcopy(app.openapi())
    for path in document["paths"].values():
        for method, operation in path.items():
            if method in ("post", "patch", "put"):
                operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return schemathesis.openapi.from_dict(document)


def _fill(bench: Bench, served: Served) -> dict[str, str]:
    """Makes one of everything that can be asked for; returns the names of what names itself."""
    served.http.put("/v1/projects/local/secrets/s", json={"value": "a secret value"})
    key = served.http.post(
        "/v1/keys", json={"label": "ann", "scope": "viewer", "project": "local", "validSeconds": None}
    )
    served.http.post("/v1/projects/local/models", json={"name": "m"})
    uri = str(bench.home.bucket / "model.keras")
    operation = served.http.post("/v1/projects/local/models/m/versions", json={"name": "v", "deploymentUri": uri})
    upload = {"model": {"displayName": "m", "artifactUri": str(bench.home.bucket)}}
    served.http.post("/v1/projects/local/locations/us-central1/models:upload", json=upload)
    bench.create("j", "print('x')")
    bench.create("waits", "pass")
    bench.step_until_over("j")
    return {"key": key.json()["key"], "operation": operation.json()["name"].rpartition("/")[2]}


@pytest.mark.parametrize(
    "num_examples",
    [
        pytest.param(4, marks=pytest.mark.timeout(120)),
        pytest.param(200, marks=[pytest.mark.heavy, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.heavy
def test_every_request_is_answered_as_declared(
    bench: Bench, num_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_WAIT_S", 0.01)  # the operation that it waits for is never done
    quick = settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with contextlib.closing(Served(bench)) as served:
        there = {**KNOWN, **_fill(bench, served)}
        answered: set[str] = set()
        for found in _schema(served.app).get_all_operations():
            operation = found.ok()

            def check(case: Case) -> None:
                label = case.operation.label
                known = {name: there[name] for name in case.path_parameters or {} if name in there}
                case.path_parameters = {**(case.path_parameters or {}), **known}
                response = case.call(base_url=served.url, headers={"authorization": f"Bearer {HOME_TOKEN}"})
                assert response.status_code not in (500, 504), (label, response.text[:300])
                case.validate_response(response, checks=CHECKS)
                if response.status_code >= 400:
                    error = response.json()["error"]
                    if INFERENCE in case.operation.path:
                        error = {"code": response.status_code, "message": error}
                    assert error["code"] == response.status_code
                    assert "\n" not in error["message"]
                else:
                    answered.add(label)

            quick(given(case=operation.as_strategy())(check))()
        assert len(answered) >= 20, "as many are answered by more than a refusal"


def test_every_route_declares_the_form_of_its_answer(bench: Bench) -> None:
    with contextlib.closing(Served(bench)) as served:
        document = served.app.openapi()
    undeclared = {
        f"{method} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if not _refs(operation["responses"]["200"].get("content", {}))
    }
    files = "get /v1/projects/{project}/jobs/{job_id}/artifacts/{path}"
    assert undeclared == {"get /metrics", files}, "Prometheus and files have formats of their own"
    errors = {
        (path, code)
        for path, operations in document["paths"].items()
        for operation in operations.values()
        for code, answer in operation["responses"].items()
        if code != "200" and _refs(answer["content"]) != [f"#/components/schemas/{_error_form(path)}"]
    }
    assert errors == set()


def _error_form(path: str) -> str:
    return "InferenceErrorForm" if INFERENCE in path else "ErrorForm"


def _refs(content: dict[str, Any]) -> list[str]:
    schema = content.get("application/json", {}).get("schema", {})
    return [part["$ref"] for part in (schema, *schema.get("anyOf", ())) if "$ref" in part]
