"""Requests that nobody thought of, made from the interface's own schema: an answer in Google's form, never a 500."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import Case

from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

KNOWN = {"project": "local", "job_id": "j", "model": "m", "version": "v"}
"""What is there: a request for what is not comes no further than that."""


def _schema(app: FastAPI) -> Any:
    """Returns the interface's schema; bodies are read by hand, so it has none."""
    document = copy.deepcopy(app.openapi())
    for path in document["paths"].values():
        for method, operation in path.items():
            if method in ("post", "patch", "put"):
                operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return schemathesis.openapi.from_dict(document)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_examples", [8, pytest.param(200, marks=[pytest.mark.heavy, pytest.mark.timeout(900)])])
def test_no_request_is_answered_with_an_internal_error(bench: Bench, num_examples: int) -> None:
    quick = settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with contextlib.closing(Served(bench)) as served:
        bench.create("j", "pass")
        served.http.post("/v1/projects/local/models", json={"name": "m"})
        answered: set[str] = set()
        for found in _schema(served.app).get_all_operations():
            operation = found.ok()

            def check(case: Case) -> None:
                label = case.operation.label
                known = {name: KNOWN[name] for name in case.path_parameters or {} if name in KNOWN}
                case.path_parameters = {**(case.path_parameters or {}), **known}
                response = case.call(base_url=served.url, headers={"authorization": f"Bearer {HOME_TOKEN}"})
                answered.add(label)
                assert response.status_code not in (500, 504), (label, response.text[:300])
                if response.status_code >= 400:
                    error = response.json()["error"]
                    assert error["code"] == response.status_code
                    assert "\n" not in error["message"]

            quick(given(case=operation.as_strategy())(check))()
        assert len(answered) >= 25
