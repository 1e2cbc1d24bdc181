"""Changes of models and versions, by Google's own client: masks, etags, and operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from lockstep.service.store import VersionState
from lockstep.testing.served import Served

MODEL = "projects/local/models/m"
VERSION = f"{MODEL}/versions/v1"


@pytest.fixture
def models(service: Served) -> Any:
    """Google's client for models, with a model m and its version v1, which is READY and the default."""
    resource = service.google().models()
    resource.create(parent="projects/local", body={"name": "m", "labels": {"team": "a", "of": "b"}}).execute()
    _create(resource, "v1")
    _make_ready(service, "v1")
    return resource


def _create(models: Any, name: str) -> dict[str, Any]:
    return models.versions().create(parent=MODEL, body={"name": name, "deploymentUri": "/m"}).execute()


def _make_ready(service: Served, name: str) -> None:
    store = service.context.models
    assert store.update_version(store.get_version(project="local", model="m", name=name), state=VersionState.READY)


def _patch(models: Any, mask: str, **body: Any) -> dict[str, Any]:
    return models.patch(name=MODEL, updateMask=mask, body=body).execute()


def _patch_version(models: Any, mask: str, **body: Any) -> dict[str, Any]:
    return models.versions().patch(name=VERSION, updateMask=mask, body=body).execute()


def _refusal(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        call()
    assert "\n" not in caught.value.reason
    return caught.value.status_code, caught.value.reason


def test_a_patch_of_a_model_changes_what_the_mask_names_and_returns_an_operation_that_is_done(
    service: Served, models: Any
) -> None:
    before = models.get(name=MODEL).execute()
    operation = _patch(models, "description", description="handwritten digits", labels={"ignored": "x"})
    assert (operation["done"], operation["metadata"]["operationType"]) == (True, "UPDATE_MODEL")
    assert operation["response"]["description"] == "handwritten digits"
    found = service.google().operations().get(name=operation["name"]).execute()
    assert found == operation
    after = models.get(name=MODEL).execute()
    assert after == {**before, "description": "handwritten digits", "etag": after["etag"]}
    assert after["etag"] != before["etag"]
    _patch(models, "description")
    assert "description" not in models.get(name=MODEL).execute(), "what is left out becomes empty"


def test_a_model_that_was_read_can_be_sent_back_whole(models: Any) -> None:
    read = models.get(name=MODEL).execute()
    assert "defaultVersion" in read
    models.patch(name=MODEL, updateMask="description,labels,defaultVersion.name", body=read).execute()
    version = models.versions().get(name=VERSION).execute()
    models.versions().patch(name=VERSION, updateMask="labels,manualScaling.nodes", body=version).execute()


def test_labels_are_changed_together_or_one_by_one(models: Any) -> None:
    for resource, patch, name in ((models, _patch, MODEL), (models.versions(), _patch_version, VERSION)):
        patch(models, "labels", labels={"team": "a", "of_b": "b"})
        patch(models, "labels.team,labels.of_b", labels={"team": "c", "else": "x"})
        assert resource.get(name=name).execute()["labels"] == {"team": "c"}
        status, message = _refusal(lambda patch=patch: patch(models, "labels", labels={"Team": "a"}))
        assert (status, "labels" in message) == (400, True)


def test_a_patch_with_a_stale_etag_changes_nothing(service: Served, models: Any) -> None:
    for resource, patch, name in ((models, _patch, MODEL), (models.versions(), _patch_version, VERSION)):
        etag = resource.get(name=name).execute()["etag"]
        patch(models, "description", description="first", etag=etag)
        read = resource.get(name=name).execute()
        status, message = _refusal(
            lambda patch=patch, etag=etag: patch(models, "description", description="second", etag=etag)
        )
        assert (status, "changed since it was read" in message) == (409, True)
        assert resource.get(name=name).execute() == read
        patch(models, "description", description="third", etag=read["etag"])
    etag = models.get(name=MODEL).execute()["etag"]
    models.versions().setDefault(name=VERSION, body={}).execute()
    assert models.get(name=MODEL).execute()["etag"] != etag, "who sets the default changes the model"
    record = service.context.models.get_version(project="local", model="m", name="v1")
    etag = models.versions().get(name=VERSION).execute()["etag"]
    service.context.models.update_version(record, num_failures=1)
    service.context.models.note_use(record.uid, time_s=1.0)
    assert models.versions().get(name=VERSION).execute()["etag"] == etag, "what the service records leaves it"


def test_a_model_of_the_same_name_has_another_etag(models: Any) -> None:
    models.create(parent="projects/local", body={"name": "again"}).execute()
    name = "projects/local/models/again"
    etag = models.get(name=name).execute()["etag"]
    models.delete(name=name).execute()
    models.create(parent="projects/local", body={"name": "again"}).execute()
    call = models.patch(name=name, updateMask="description", body={"etag": etag}).execute
    assert _refusal(call)[0] == 409


@pytest.mark.parametrize("mask", ["defaultVersion.name", "default_version.name"])
@pytest.mark.parametrize("name", ["v2", f"{MODEL}/versions/v2"])
def test_a_patch_sets_the_default_version_if_it_answers(service: Served, models: Any, mask: str, name: str) -> None:
    _create(models, "v2")
    default = {"defaultVersion": {"name": name}}
    status, message = _refusal(lambda: _patch(models, mask, **default))
    assert (status, message) == (
        400,
        "version v2 of m is CREATING, and answers no requests; choose a version that is READY",
    )
    _make_ready(service, "v2")
    assert _patch(models, mask, **default)["response"]["defaultVersion"]["name"] == f"{MODEL}/versions/v2"
    assert _refusal(lambda: _patch(models, mask, defaultVersion={"name": "v3"}))[0] == 404
    for body in ({}, {"defaultVersion": {}}):
        status, message = _refusal(lambda body=body: _patch(models, mask, **body))
        assert (status, "defaultVersion.name is missing" in message) == (400, True)


@pytest.mark.parametrize(
    ("mask", "status", "message"),
    [
        ("", 400, "updateMask: it names no field; allowed: description, labels, manualScaling.nodes"),
        ("machineType", 400, "updateMask: machineType: cannot be changed; allowed: description, labels, manual"),
        ("manualScaling", 400, "updateMask: manualScaling: cannot be changed; allowed: description"),
        ("colour", 400, "updateMask: colour: no such field; allowed: description"),
        ("description,state", 400, "updateMask: state: cannot be changed"),
        ("requestLoggingConfig", 501, "requestLoggingConfig: there is no BigQuery"),
        ("request_logging_config.samplingPercentage", 501, "requestLoggingConfig.samplingPercentage: there is no"),
        ("manualScaling.nodes", 400, "request: manualScaling.nodes is missing"),
    ],
)
def test_a_mask_with_a_path_that_cannot_be_changed_is_refused_by_its_name(
    models: Any, mask: str, status: int, message: str
) -> None:
    before = models.versions().get(name=VERSION).execute()
    refused = _refusal(lambda: _patch_version(models, mask, description="x", manualScaling={}))
    assert refused[0] == status, refused
    assert message in refused[1]
    assert models.versions().get(name=VERSION).execute() == before


def test_paths_of_a_model_that_cannot_be_changed_are_refused_by_their_names(models: Any) -> None:
    for mask in ("regions", "onlinePredictionLogging", "defaultVersion", "name", "etag"):
        status, message = _refusal(lambda mask=mask: _patch(models, mask, regions=["us-central1"]))
        assert (status, message.partition(";")[0]) == (400, f"updateMask: {mask}: cannot be changed")
        assert "allowed: description, labels, defaultVersion.name, lockstep.trafficSplit" in message
    status, message = _refusal(lambda: _patch(models, "description", descriptoin="x"))
    assert (status, message) == (400, "request: unknown key descriptoin; did you mean 'description'?")
    assert _refusal(models.patch(name=f"{MODEL}x", updateMask="description", body={}).execute)[0] == 404


def test_the_number_of_nodes_changes_with_an_operation_that_ends_when_the_servers_are_there(
    service: Served, models: Any
) -> None:
    operation = _patch_version(models, "manualScaling.nodes", manualScaling={"nodes": 3})
    metadata = operation["metadata"]
    assert "done" not in operation
    assert (metadata["operationType"], metadata["version"]["manualScaling"]) == ("UPDATE_VERSION", {"nodes": 3})
    operations = service.google().operations()
    status, message = _refusal(operations.cancel(name=operation["name"]).execute)
    assert (status, "cannot be cancelled" in message) == (400, True)
    same = _patch_version(models, "description,manualScaling.nodes", manualScaling={"nodes": 3})
    assert same["done"] is True, "the number stays"
    assert "done" not in operations.get(name=operation["name"]).execute()
    following = _patch_version(models, "manualScaling.nodes", manualScaling={"nodes": 2})
    ended = operations.get(name=operation["name"]).execute()
    assert ended["error"] == {"code": 1, "message": f"another update followed: {following['name'].rpartition('/')[2]}"}
    models.versions().delete(name=VERSION).execute()
    service.context.deployments.step()
    ended = operations.get(name=following["name"]).execute()
    assert ended["error"] == {"code": 1, "message": "the version was deleted"}


def test_a_version_is_changed_in_the_states_that_allow_it(service: Served, models: Any) -> None:
    _create(models, "v2")
    name = f"{MODEL}/versions/v2"
    versions = models.versions()
    versions.patch(name=name, updateMask="description", body={"description": "new"}).execute()
    call = versions.patch(name=name, updateMask="manualScaling.nodes", body={"manualScaling": {"nodes": 2}}).execute
    status, message = _refusal(call)
    assert (status, "manualScaling.nodes: version v2 of m is CREATING" in message) == (400, True)
    for nodes in (0, 101, "many"):
        body = {"manualScaling": {"nodes": nodes}}
        call = versions.patch(name=VERSION, updateMask="manualScaling.nodes", body=body).execute
        status, message = _refusal(call)
        assert (status, "manualScaling.nodes" in message) == (400, True)
    versions.delete(name=name).execute()
    call = versions.patch(name=name, updateMask="description", body={"description": "late"}).execute
    assert _refusal(call) == (400, "version v2 of m is being deleted")


def test_the_bounds_of_a_scaled_version_are_changed_and_its_way_of_scaling_stays(service: Served, models: Any) -> None:
    body = {"name": "v3", "deploymentUri": "gs://bucket/m", "autoScaling": {"minNodes": 1, "maxNodes": 3}}
    versions, name = models.versions(), f"{MODEL}/versions/v3"
    versions.create(parent=MODEL, body=body).execute()
    store = service.context.models
    created = store.get_version(project="local", model="m", name="v3")
    assert store.update_version(created, state=VersionState.READY)
    bounds = {"autoScaling": {"minNodes": 2, "maxNodes": 5}}
    versions.patch(name=name, updateMask="autoScaling.minNodes,autoScaling.maxNodes", body=bounds).execute()
    changed = store.get_version(project="local", model="m", name="v3")
    assert changed.scaling is not None
    assert (changed.scaling.min_servers, changed.scaling.max_servers, changed.num_servers) == (2, 5, 2)
    assert versions.get(name=name).execute()["autoScaling"]["maxNodes"] == 5
    for mask, body, message in (
        ("autoScaling.maxNodes", {"autoScaling": {"maxNodes": 1}}, "allowed: minNodes, 2, to 100"),
        ("manualScaling.nodes", {"manualScaling": {"nodes": 2}}, "has autoScaling"),
    ):
        _, said = _refusal(versions.patch(name=name, updateMask=mask, body=body).execute)
        assert message in said
