"""Every method of the contract and of Vertex AI's form: each has a row in the documentation, and keeps to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from googleapiclient.discovery_cache import get_static_doc
from pydantic import TypeAdapter

from lockstep.jobs.security.access import Scope
from lockstep.service.api.refusals import CONTRACT
from lockstep.service.api.vertex.refusals import VERTEX
from lockstep.testing.served import Served

PAGE = Path(__file__).parents[3] / "docs" / "contract.md"
VERTEX_HEADING = "## Vertex AI's models and endpoints"
ASKED = ("projects.predict", "projects.explain")
"""Methods whose path, as the discovery document has it, does not say that a model is asked."""


def _methods(api: str, *collections: str) -> dict[str, tuple[str, str]]:
    """Returns the HTTP method and the path of every method of a discovery document, by its name.

    The documents are those that google-api-python-client brings along.

    Args:
        api: the name of the API.
        collections: the collections of `projects.locations` to walk; all of the document if omitted.
    """
    document = TypeAdapter(dict[str, Any]).validate_json(get_static_doc(api, "v1") or "")
    found = dict(_walk("projects", document["resources"]["projects"]))
    wanted = tuple(f"projects.locations.{name}." for name in collections) or ("projects.",)
    return {name: method for name, method in found.items() if name.startswith(wanted)}


def _walk(name: str, collection: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    for verb, method in collection.get("methods", {}).items():
        path = method["flatPath"]
        if f"{name}.{verb}" in ASKED:
            path = path.replace("{projectsId}", "{projectsId}/models/{modelsId}")
        yield f"{name}.{verb}", (method["httpMethod"], path)
    for part, inner in collection.get("resources", {}).items():
        yield from _walk(f"{name}.{part}", inner)


def _rows(text: str) -> dict[str, tuple[Scope, bool]]:
    """Returns the scope of each method in the tables of a text, and whether it is honoured."""
    rows: dict[str, tuple[Scope, bool]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not cells[0].startswith("`projects."):
            continue
        names, scope, support = cells
        collection = ""
        for name in re.findall(r"`([\w.*]+)`", names):
            full = name if name.startswith("projects.") else f"{collection}.{name}"
            collection = full.rpartition(".")[0]
            assert full not in rows, full
            assert re.match(r"(yes|no)\b", support), full
            rows[full] = (Scope(scope), support.startswith("yes"))
    return rows


def _row(name: str, rows: Mapping[str, tuple[Scope, bool]]) -> str:
    """Returns the name of the row of a method: its own, or that of the collection that it is in."""
    parts = name.split(".")
    collections = [f"{'.'.join(parts[:length])}.*" for length in range(len(parts) - 1, 0, -1)]
    found = [candidate for candidate in (name, *collections) if candidate in rows]
    assert found, f"{name} has no row in docs/contract.md"
    return found[0]


@pytest.fixture
def clients(service: Served) -> dict[Scope, httpx.Client]:
    """A client for each scope, that of a caller for model m."""
    keys = {scope: service.key(scope, model="m" if scope is Scope.CALLER else None) for scope in Scope}
    return {scope: service.client(key) for scope, key in keys.items()}


def _ask(client: httpx.Client, method: str, path: str) -> httpx.Response:
    path = path.replace("{projectsId}", "local").replace("{locationsId}", "us-central1")
    return client.request(method, "/" + re.sub(r"{\w+}", "m", path), json=None if method == "GET" else {})


@pytest.mark.parametrize("api", ["ml", "aiplatform"])
def test_every_method_has_a_row_and_keeps_to_it(clients: dict[Scope, httpx.Client], api: str) -> None:
    contract, _, vertex = PAGE.read_text().partition(VERTEX_HEADING)
    methods = _methods("ml") if api == "ml" else _methods(api, "endpoints", "models", "operations")
    rows = _rows(contract if api == "ml" else vertex)
    seen: set[str] = set()
    for name, (method, path) in methods.items():
        row = _row(name, rows)
        seen.add(row)
        scope, is_honoured = rows[row]
        for smaller in [each for each in Scope if not each.includes(scope)]:
            assert _ask(clients[smaller], method, path).status_code == 403, (name, smaller)
        answer = _ask(clients[scope], method, path)
        error = answer.json().get("error", {"message": ""})
        assert answer.status_code not in (401, 403, 405), (name, answer.text)
        assert error["message"] != "Not Found", name
        assert (answer.status_code == 501) is not is_honoured, (name, answer.text)
        if not is_honoured:
            assert error["status"] == "UNIMPLEMENTED"
            assert error["message"].startswith(f"{row}: "), (name, error)
    assert set(rows) == seen, "a row is of no method"


def test_every_refusal_is_of_one_method_and_says_what_to_use() -> None:
    page = PAGE.read_text()
    for refusal in (*CONTRACT, *VERTEX):
        assert refusal.reason
        assert refusal.action
        assert f"`{refusal.name.rpartition('.')[2]}`" in page or f"`{refusal.name}`" in page, refusal.name


def test_a_refusal_is_in_googles_form(service: Served) -> None:
    answer = service.http.post("/v1/projects/local/models/m/versions/v1:explain", json={})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["details"][0]["reason"]) == (501, 501, "UNIMPLEMENTED")
    assert error["message"] == (
        "projects.explain: predictions are not explained; serve a model, or a custom prediction routine, that returns "
        "its attributions as an output, and use projects.predict"
    )
    config = service.http.get("/v1/projects/local:getConfig").json()["error"]["message"]
    assert config.startswith("projects.getConfig: a project has no service account here; GET /v1/whoami")
    assert service.http.get("/v1/projects/NotOne:getConfig").status_code == 400


def test_a_callers_key_is_told_about_its_own_model_only(service: Served) -> None:
    caller = service.client(service.key(Scope.CALLER, project="local", model="m"))
    for path, status in {
        "/v1/projects/local/models/m:explain": 501,
        "/v1/projects/local/models/other:explain": 404,
        "/v1/projects/local/locations/us-central1/endpoints/m:explain": 501,
        "/v1/projects/local/locations/us-central1/models/m:export": 403,
    }.items():
        assert caller.post(path, json={}).status_code == status, path
