"""The traffic of a model and its rollback over REST, and the number of versions that a model keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from lockstep.jobs.security.access import Scope
from lockstep.service.store import VersionState
from lockstep.testing.served import Served

MODEL = "projects/local/models/m"
PATH = f"/v1/{MODEL}"


@pytest.fixture
def models(service: Served) -> Any:
    """Google's client for models, with a model m, its READY versions v1, the default, and v2, and v3, which is not."""
    resource = service.google().models()
    resource.create(parent="projects/local", body={"name": "m"}).execute()
    store = service.context.models
    for name in ("v1", "v2", "v3"):
        resource.versions().create(parent=MODEL, body={"name": name, "deploymentUri": "/m"}).execute()
        if name != "v3":
            version = store.get_version(project="local", model="m", name=name)
            assert store.update_version(version, state=VersionState.READY)
    return resource


def _patch(models: Any, mask: str, **body: Any) -> dict[str, Any]:
    return models.patch(name=MODEL, updateMask=mask, body=body).execute()


def _split(models: Any, split: object, **body: Any) -> dict[str, Any]:
    return _patch(models, "lockstep.trafficSplit", lockstep={"trafficSplit": split}, **body)


def _refusal(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        call()
    assert "\n" not in caught.value.reason
    return caught.value.status_code, caught.value.reason


def test_the_traffic_is_split_and_the_default_version_has_the_largest_share(models: Any) -> None:
    assert models.get(name=MODEL).execute()["lockstep"]["trafficSplit"] == {"v1": 100}
    operation = _split(models, {"v1": 90, "v2": 10})
    assert (operation["done"], operation["response"]["lockstep"]["trafficSplit"]) == (True, {"v1": 90, "v2": 10})
    assert models.get(name=MODEL).execute()["defaultVersion"]["name"] == f"{MODEL}/versions/v1"
    _patch(models, "lockstep.traffic_split", lockstep={"trafficSplit": {"v1": 20, "v2": "80"}})
    read = models.get(name=MODEL).execute()
    assert (read["defaultVersion"]["name"], read["lockstep"]["trafficSplit"]) == (
        f"{MODEL}/versions/v2",
        {"v2": 80, "v1": 20},
    )
    listed = models.versions().list(parent=MODEL).execute()["versions"]
    assert [version["name"] for version in listed if version.get("isDefault")] == [f"{MODEL}/versions/v2"]


def test_who_sets_the_default_gives_it_all_traffic(models: Any) -> None:
    _split(models, {"v1": 90, "v2": 10})
    models.versions().setDefault(name=f"{MODEL}/versions/v2", body={}).execute()
    assert models.get(name=MODEL).execute()["lockstep"]["trafficSplit"] == {"v2": 100}
    _split(models, {"v1": 90, "v2": 10})
    _patch(models, "defaultVersion.name", defaultVersion={"name": "v1"})
    assert models.get(name=MODEL).execute()["lockstep"]["trafficSplit"] == {"v1": 100}
    status, message = _refusal(
        lambda: _patch(
            models,
            "defaultVersion.name,lockstep.trafficSplit",
            defaultVersion={"name": "v1"},
            lockstep={"trafficSplit": {"v1": 100}},
        )
    )
    assert (status, "both say which versions answer" in message) == (400, True)


@pytest.mark.parametrize(
    ("split", "status", "message"),
    [
        ({"v1": 90}, 400, "lockstep.trafficSplit; received {'v1': 90}; allowed: whole percents from 0 to 100 that sum"),
        ({"v1": 60, "v2": 60}, 400, "these sum to 120"),
        ({"v1": 110, "v2": -10}, 400, "whole percents from 0 to 100"),
        ({"v1": 99.5, "v2": 0.5}, 400, "allowed: a whole number"),
        ({"v1": True}, 400, "allowed: a whole number"),
        ([["v1", 100]], 400, "lockstep.trafficSplit"),
        ("v1", 400, "lockstep.trafficSplit"),
        (None, 400, "request: lockstep.trafficSplit is missing"),
        ({"v9": 100}, 404, "model m has no version 'v9'"),
        ({"v1": 90, "v3": 10}, 400, "version v3 of m is CREATING, and answers no requests; choose a version that is"),
        ({f"v{number}": 0 for number in range(101)}, 400, "lockstep.trafficSplit"),
    ],
)
def test_a_split_that_cannot_be_is_refused_and_changes_nothing(
    models: Any, split: object, status: int, message: str
) -> None:
    before = models.get(name=MODEL).execute()
    refused = _refusal(lambda: _split(models, split))
    assert refused[0] == status, refused
    assert message in refused[1]
    assert models.get(name=MODEL).execute() == before


def test_no_version_answers_without_traffic(models: Any, service: Served) -> None:
    _split(models, {})
    read = models.get(name=MODEL).execute()
    assert "defaultVersion" not in read
    assert "trafficSplit" not in read["lockstep"]
    answer = service.http.post(f"{PATH}:predict", json={"instances": [1]})
    assert answer.status_code == 503
    assert "model m has no default version" in answer.json()["error"]["message"]


def test_a_stale_etag_is_refused(models: Any, service: Served) -> None:
    etag = models.get(name=MODEL).execute()["etag"]
    _split(models, {"v1": 90, "v2": 10}, etag=etag)
    status, message = _refusal(lambda: _split(models, {"v2": 100}, etag=etag))
    assert (status, "changed since it was read" in message) == (409, True)
    answer = service.http.post(f"{PATH}:rollback", json={"etag": etag})
    assert (answer.status_code, "changed since it was read" in answer.json()["error"]["message"]) == (409, True)
    assert models.get(name=MODEL).execute()["lockstep"]["trafficSplit"] == {"v1": 90, "v2": 10}
    etag = models.get(name=MODEL).execute()["etag"]
    assert service.http.post(f"{PATH}:rollback", json={"etag": etag}).status_code == 200
    assert models.get(name=MODEL).execute()["etag"] != etag


def test_a_rollback_restores_the_traffic_and_the_changes_say_who_made_them(models: Any, service: Served) -> None:
    _split(models, {"v1": 90, "v2": 10})
    bob = service.client(service.key(Scope.SUBMITTER, project="local", label="bob"))
    restored = bob.post(f"{PATH}:rollback").json()
    assert restored == models.get(name=MODEL).execute()
    assert restored["lockstep"]["trafficSplit"] == {"v1": 100}
    changes = restored["lockstep"]["trafficChanges"]
    owner = service.http.get("/v1/whoami").json()["label"]
    assert [(change["changedBy"], change["trafficSplit"]) for change in changes] == [
        ("bob", {"v1": 100}),
        (owner, {"v1": 90, "v2": 10}),
        ("service", {"v1": 100}),
    ]
    assert bob.post(f"{PATH}:rollback").json()["lockstep"]["trafficSplit"] == {"v1": 90, "v2": 10}
    listed = service.http.get("/v1/projects/local/models").json()["models"]
    assert "trafficChanges" not in listed[0]["lockstep"], "lists are short"


def test_a_rollback_that_cannot_be_is_refused(models: Any, service: Served) -> None:
    def refused(path: str = PATH, **body: Any) -> tuple[int, str]:
        answer = service.http.post(f"{path}:rollback", json=body)
        return answer.status_code, answer.json()["error"]["message"]

    status, message = refused()
    assert (status, message.partition(";")[0]) == (400, "no version of m had traffic before the last change of it")
    assert refused("/v1/projects/local/models/other")[0] == 404
    assert refused(steps=2) == (400, "request: unknown key steps; allowed: etag")
    viewer = service.client(service.key(Scope.VIEWER, project="local"))
    assert viewer.post(f"{PATH}:rollback").status_code == 403


def test_a_version_with_traffic_is_not_deleted(models: Any) -> None:
    _split(models, {"v1": 90, "v2": 10})
    status, message = _refusal(models.versions().delete(name=f"{MODEL}/versions/v2").execute)
    assert (status, message.partition(";")[0]) == (400, "version v2 has 10% of the traffic of m")


def test_a_model_keeps_as_many_versions_as_it_says(models: Any, service: Served) -> None:
    body = {"name": "few", "lockstep": {"maxVersions": 3}}
    assert models.create(parent="projects/local", body=body).execute()["lockstep"] == {"maxVersions": 3}
    _patch(models, "lockstep.maxVersions", lockstep={"maxVersions": 5})
    assert models.get(name=MODEL).execute()["lockstep"]["maxVersions"] == 5
    _patch(models, "lockstep.maxVersions", lockstep={"maxVersions": 0})
    assert "maxVersions" not in models.get(name=MODEL).execute()["lockstep"], "it keeps all"
    for number in (-1, 1001, "many"):
        status, message = _refusal(
            lambda number=number: _patch(models, "lockstep.maxVersions", lockstep={"maxVersions": number})
        )
        assert (status, "lockstep.maxVersions" in message) == (400, True)
    status, message = _refusal(
        models.create(parent="projects/local", body={"name": "x", "lockstep": {"trafficSplit": {"v1": 100}}}).execute
    )
    assert (status, "a new model, which has no versions" in message) == (400, True)
    assert service.http.get("/v1/projects/local/models/x").status_code == 404


def test_a_model_that_was_read_can_be_sent_back_whole(models: Any) -> None:
    _split(models, {"v1": 90, "v2": 10})
    read = models.get(name=MODEL).execute()
    mask = "description,labels,lockstep.trafficSplit"
    models.patch(name=MODEL, updateMask=mask, body=read).execute()
    after = models.get(name=MODEL).execute()
    assert after["lockstep"] == read["lockstep"], "no change of the traffic is recorded"
