"""The methods of jobs, models, versions and operations of the contract that are honoured, by Google's own client."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from googleapiclient.discovery_cache import get_static_doc
from googleapiclient.errors import HttpError
from pydantic import TypeAdapter

from lockstep.jobs.security.access import Scope
from lockstep.service.store import VersionState
from lockstep.testing.served import Served

JOB, OPERATION = "projects/local/jobs/made", "projects/local/operations/"

REFUSED = {
    "getIamPolicy": ("lockstep keys list", "/v1/keys"),
    "setIamPolicy": ("lockstep keys create", "/v1/keys"),
    "testIamPermissions": ("lockstep whoami", "/v1/whoami"),
}
"""The methods of jobs and of models that are refused, with what their refusals name; test_refusals.py has them all."""


def _methods(*collections: str) -> list[str]:
    found = TypeAdapter(dict[str, Any]).validate_json(get_static_doc("ml", "v1") or "")["resources"]["projects"]
    for collection in collections:
        found = found["resources"][collection]
    return sorted(found["methods"])


def _deploy(service: Served, version: str) -> str:
    """Creates a version of model m; returns the name of the operation."""
    versions = service.google().models().versions()
    body = {"name": version, "deploymentUri": "/m"}
    return versions.create(parent="projects/local/models/m", body=body).execute()["name"]


@pytest.fixture
def operation(service: Served) -> str:
    """Creates model m and version v1 of it, whose server nobody starts; returns the name of the operation."""
    service.google().models().create(parent="projects/local", body={"name": "m"}).execute()
    return _deploy(service, "v1")


def _refusal(call: Callable[[], Any]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        call()
    return caught.value


def _listed(service: Served, **parameters: Any) -> list[str]:
    found = service.google().operations().list(name="projects/local", **parameters).execute()
    return [operation["name"] for operation in found["operations"]]


def test_every_method_of_jobs_and_operations_is_built_or_refused_by_its_name(service: Served, operation: str) -> None:
    google = service.google()
    body = {"jobId": "made", "trainingInput": {"pythonModule": "train"}}
    labels = {"labels": {"a": "b"}}
    calls: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
        "jobs": {
            "create": {"parent": "projects/local", "body": body},
            "get": {"name": JOB},
            "list": {"parent": "projects/local"},
            "patch": {"name": JOB, "updateMask": "labels", "body": labels},
            "cancel": {"name": JOB, "body": {}},
            "getIamPolicy": {"resource": JOB},
            "setIamPolicy": {"resource": JOB, "body": {"policy": {}}},
            "testIamPermissions": {"resource": JOB, "body": {"permissions": ["ml.jobs.get"]}},
        },
        "operations": {
            "get": {"name": operation},
            "list": {"name": "projects/local"},
            "cancel": {"name": operation},
        },
    }
    for collection, arguments in calls.items():
        assert sorted(arguments) == _methods(collection), "the contract has other methods than this test knows of"
        for method, given in arguments.items():
            request = getattr(getattr(google, collection)(), method)(**given)
            if method not in REFUSED:
                request.execute()
                continue
            error = _refusal(request.execute)
            assert error.status_code == 501, method
            assert error.reason.startswith(f"projects.jobs.{method}: jobs have no IAM policies here"), method
            for way in REFUSED[method]:
                assert way in error.reason, method


def test_every_method_of_models_and_versions_is_built_or_refused_by_its_name(service: Served, operation: str) -> None:
    store = service.context.models
    assert store.update_version(store.get_version(project="local", model="m", name="v1"), state=VersionState.READY)
    models = service.google().models()
    model, new = "projects/local/models/m", "projects/local/models/new"
    version, changed = f"{model}/versions/v1", {"description": "x"}
    calls: Mapping[str, Mapping[str, Any]] = {
        "create": {"parent": "projects/local", "body": {"name": "new"}},
        "get": {"name": new},
        "list": {"parent": "projects/local"},
        "patch": {"name": new, "updateMask": "description", "body": changed},
        "delete": {"name": new},
        "getIamPolicy": {"resource": model},
        "setIamPolicy": {"resource": model, "body": {"policy": {}}},
        "testIamPermissions": {"resource": model, "body": {"permissions": ["ml.models.get"]}},
    }
    assert sorted(calls) == _methods("models"), "the contract has other methods than this test knows of"
    for method, given in calls.items():
        request = getattr(models, method)(**given)
        if method not in REFUSED:
            request.execute()
            continue
        error = _refusal(request.execute)
        assert error.status_code == 501, method
        assert error.reason.startswith(f"projects.models.{method}: models have no IAM policies here"), method
        for way in REFUSED[method]:
            assert way in error.reason, method
    calls = {
        "create": {"parent": model, "body": {"name": "v2", "deploymentUri": "/m"}},
        "get": {"name": version},
        "list": {"parent": model},
        "patch": {"name": version, "updateMask": "description", "body": changed},
        "setDefault": {"name": version, "body": {}},
        "delete": {"name": f"{model}/versions/v2"},
    }
    assert sorted(calls) == _methods("models", "versions"), "the contract has other methods than this test knows of"
    for method, given in calls.items():
        getattr(models.versions(), method)(**given).execute()


def test_a_refusal_is_in_googles_form(service: Served) -> None:
    error = service.http.get(f"/v1/{JOB}:getIamPolicy").json()["error"]
    assert (error["code"], error["status"], error["details"][0]["reason"]) == (501, "UNIMPLEMENTED", "UNIMPLEMENTED")
    partial = service.google().operations().list(name="projects/local", returnPartialSuccess=True)
    assert "returnPartialSuccess" in _refusal(partial.execute).reason


def test_operations_come_in_pages_the_newest_first(service: Served, operation: str) -> None:
    made = [operation, *(_deploy(service, f"v{number}") for number in range(2, 7))]
    seen: list[str] = []
    operations = service.google().operations()
    request = operations.list(name="projects/local", pageSize=4)
    sizes: list[int] = []
    while request is not None:
        page = request.execute()
        sizes.append(len(page["operations"]))
        seen += [operation["name"] for operation in page["operations"]]
        request = operations.list_next(request, page)
    assert sizes == [4, 2]
    assert seen == made[::-1]
    refused = _refusal(operations.list(name="projects/local", pageToken="x").execute)
    assert "pageToken was not issued by this service" in refused.reason
    assert service.google().operations().list(name="projects/other").execute() == {"operations": []}


def test_a_filter_narrows_operations(service: Served, operation: str) -> None:
    service.google().models().create(parent="projects/local", body={"name": "empty"}).execute()
    deleted = service.google().models().delete(name="projects/local/models/empty").execute()["name"]
    for text, found in {
        "done:false": [operation],
        "done=true": [deleted],
        f"name={operation}": [operation],
        "NOT name:delete_model": [operation],
        "metadata.operationType=DELETE_MODEL": [deleted],
        "metadata.createTime<2001-01-01": [],
        "metadata.createTime>2001-01-01 AND metadata.modelName:empty": [deleted],
    }.items():
        assert _listed(service, filter=text) == found, text
    for text, message in {
        "dome:true": "did you mean 'done'?",
        "metadata.version.name:v1": "did you mean",
        "jobId:x": "allowed: name, done, metadata.operationType",
        "done": "such as done:false",
    }.items():
        refused = _refusal(service.google().operations().list(name="projects/local", filter=text).execute)
        assert refused.status_code == 400, text
        assert message in refused.reason, text


OPERATION_METADATA = {
    **dict.fromkeys(("createTime", "startTime", "endTime", "isCancellationRequested"), True),
    **dict.fromkeys(("operationType", "modelName", "version", "labels"), True),
    "projectNumber": False,
}
"""The fields of the metadata of an operation, and whether they are ever set."""


def test_the_metadata_of_an_operation_has_the_fields_of_the_contract(service: Served) -> None:
    schema = TypeAdapter(dict[str, Any]).validate_json(get_static_doc("ml", "v1") or "")["schemas"]
    assert set(OPERATION_METADATA) == set(schema["GoogleCloudMlV1__OperationMetadata"]["properties"])
    google = service.google()
    google.models().create(parent="projects/local", body={"name": "m", "labels": {"of": "models"}}).execute()
    body = {"name": "v1", "deploymentUri": "/m", "labels": {"of": "versions"}}
    created = google.models().versions().create(parent="projects/local/models/m", body=body).execute()["metadata"]
    assert created["startTime"] == created["createTime"]
    assert created["labels"] == created["version"]["labels"] == {"of": "versions"}
    patch = google.models().patch
    changed = patch(name="projects/local/models/m", updateMask="description", body={"description": "x"}).execute()
    assert changed["metadata"]["labels"] == {"of": "models"}
    name = google.operations().list(name="projects/local").execute()["operations"][-1]["name"]
    google.operations().cancel(name=name).execute()
    cancelled = google.operations().get(name=name).execute()["metadata"]
    seen = {*created, *changed["metadata"], *cancelled} - {"@type"}
    assert seen == {field for field, is_set in OPERATION_METADATA.items() if is_set}
    page = (Path(__file__).parents[3] / "docs" / "contract.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page.partition("| field of `metadata` |")[2].partition("\n\n")[0]))
    assert set(OPERATION_METADATA) <= documented


def test_a_creation_that_is_cancelled_ends_as_cancelled_and_takes_its_version_along(
    service: Served, operation: str
) -> None:
    ann = service.google(service.key(Scope.SUBMITTER, project="local", label="ann"))
    assert ann.operations().cancel(name=operation).execute() == {}
    cancelled = ann.operations().get(name=operation).execute()
    assert (cancelled["done"], cancelled["error"]) == (True, {"code": 1, "message": "cancelled by ann"})
    assert cancelled["metadata"]["isCancellationRequested"] is True
    assert "response" not in cancelled
    assert _listed(service, filter="error.code=1") == [operation]
    version = "projects/local/models/m/versions/v1"
    assert ann.models().versions().get(name=version).execute()["state"] == "DELETING"
    service.context.deployments.step()
    assert _refusal(ann.models().versions().get(name=version).execute).status_code == 404
    assert ann.operations().get(name=operation).execute()["error"] == cancelled["error"]
    again = _refusal(ann.operations().cancel(name=operation).execute)
    assert again.status_code == 400
    assert b'"FAILED_PRECONDITION"' in again.content
    assert again.reason.endswith("is over already")


def test_a_deletion_and_a_creation_that_it_ends_cannot_be_cancelled(service: Served, operation: str) -> None:
    versions = service.google().models().versions()
    deletion = versions.delete(name="projects/local/models/m/versions/v1").execute()["name"]
    for name, message in {
        deletion: "a deletion cannot be undone; wait until it is over, and create version v1 again",
        operation: "version v1 is no longer being created",
    }.items():
        refused = _refusal(service.google().operations().cancel(name=name).execute)
        assert refused.status_code == 400, name
        assert message in refused.reason, name
    nobody = _refusal(service.google().operations().cancel(name=f"{OPERATION}nobody").execute)
    assert nobody.status_code == 404
    service.context.deployments.step()
    ended = service.google().operations().get(name=operation).execute()
    assert ended["error"] == {"code": 1, "message": "the version was deleted"}
    assert "isCancellationRequested" not in ended["metadata"], "nobody has cancelled it"
    assert service.google().operations().get(name=deletion).execute()["done"] is True
