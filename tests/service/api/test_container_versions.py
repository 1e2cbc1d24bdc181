"""Versions in containers, by Google's own client and in Vertex AI's form: what is kept, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from googleapiclient.errors import HttpError
from tests.service.api.test_vertex import _create, _deploy, _refusal, _upload, locations
from tests.service.conftest import IMAGE

from lockstep.service.api.prediction.containers import RESERVED_PREFIX
from lockstep.testing.served import Served

__all__ = ["locations"]

pytestmark = pytest.mark.usefixtures("engine")

PARENT = "projects/local"
VERSION = f"{PARENT}/models/m/versions/v1"
CONTAINER = {
    "image": IMAGE,
    "command": ["serve"],
    "args": ["--port=$(AIP_HTTP_PORT)"],
    "ports": [{"containerPort": 7000}],
    "env": [{"name": "THREADS", "value": "4"}],
}
ROUTES = {"predict": "/predict", "health": "/alive"}


@pytest.fixture
def versions(service: Served) -> Any:
    """Google's client for the versions of a model."""
    models = service.google().models()
    models.create(parent=PARENT, body={"name": "m"}).execute()
    return models.versions()


def create(versions: Any, **fields: Any) -> dict[str, Any]:
    versions.create(parent=f"{PARENT}/models/m", body={"name": "v1", **fields}).execute()
    return versions.get(name=VERSION).execute()


def test_a_container_is_kept_and_returned(versions: Any) -> None:
    created = create(versions, container=CONTAINER, routes=ROUTES, deploymentUri="/m")
    assert (created["container"], created["routes"], created["deploymentUri"]) == (CONTAINER, ROUTES, "/m")


def test_a_container_needs_no_more_than_an_image(versions: Any) -> None:
    created = create(versions, container={"image": IMAGE})
    assert created["container"] == {"image": IMAGE, "ports": [{"containerPort": 8080}]}
    assert created["routes"] == {"predict": "/v1/models/m/versions/v1:predict", "health": "/v1/models/m/versions/v1"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"routes": ROUTES, "deploymentUri": "/m"}, "request: routes is only for a container"),
        ({"container": {}}, "request: container.image is missing"),
        ({"container": {"image": "Not An Image"}}, "container.image; received 'Not An Image'"),
        ({"container": {"image": "--privileged"}}, "container.image; received '--privileged'"),
        ({"routes": {"predict": "predict"}}, "request: routes.predict; received 'predict'; allowed: a path"),
        ({"routes": {"health": "/a b"}}, "request: routes.health; received '/a b'; allowed: a path"),
        ({"routes": {"health": "/a?b"}}, "request: routes.health; received '/a?b'; allowed: a path"),
        ({"ports": [{"containerPort": 0}]}, "request: container.ports[0].containerPort; received 0"),
        ({"ports": [{"containerPort": 1}, {"containerPort": 2}]}, "request: container.ports"),
        ({"env": [{"name": "A B"}]}, "request: container.env[0].name; received 'A B'; allowed: names of letters"),
        ({"env": [{"name": "AIP_MODE"}]}, f"allowed: another name: the service sets {RESERVED_PREFIX}..."),
        ({"env": [{"name": "LOCKSTEP_TOKEN"}]}, "allowed: another name: Lockstep itself sets LOCKSTEP_TOKEN"),
        (
            {"env": [{"name": "A"}, {"name": "A"}]},
            "request: container.env; received 'A twice'; allowed: each name once",
        ),
        ({"predictionClass": "a.B"}, "request: predictionClass has no effect on a container"),
        ({"packageUris": ["/p.tar.gz"]}, "request: packageUris has no effect on a container"),
        ({"framework": "TENSORFLOW"}, "request: framework has no effect on a container"),
        ({"lockstep": {"pythonModule": "a.b"}}, "request: lockstep.pythonModule has no effect on a container"),
    ],
)
def test_what_a_container_cannot_have_is_refused_by_its_name(
    versions: Any, fields: dict[str, Any], message: str
) -> None:
    of_container = {key: fields.pop(key) for key in ("ports", "env") if key in fields}
    if "deploymentUri" not in fields:
        fields = {"container": {"image": IMAGE, **of_container}, **fields}
    with pytest.raises(HttpError) as caught:
        create(versions, **fields)
    assert message in caught.value.reason
    assert "\n" not in caught.value.reason
    assert versions.list(parent=f"{PARENT}/models/m").execute() == {"versions": []}


def test_a_machine_without_an_engine_says_so(versions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HttpError) as caught:
        create(versions, container=CONTAINER)
    assert caught.value.reason.startswith(f"container.image: {IMAGE} cannot be run")
    assert "podman" in caught.value.reason


def test_a_batch_prediction_with_a_container_is_refused(versions: Any, service: Served) -> None:
    create(versions, container=CONTAINER)
    body = {
        "jobId": "j",
        "predictionInput": {
            "versionName": VERSION,
            "dataFormat": "JSON",
            "inputPaths": ["/in/*"],
            "outputPath": "/out",
            "region": "us-central1",
        },
    }
    answer = service.http.post("/v1/projects/local/jobs", json=body)
    assert answer.status_code == 400, answer.text
    assert "version v1 of m is a container, which answers requests alone" in answer.text


SPEC = {
    "imageUri": IMAGE,
    "command": ["serve"],
    "args": ["--port=$(AIP_HTTP_PORT)"],
    "ports": [{"containerPort": 7000}],
    "env": [{"name": "THREADS", "value": "4"}],
}


def test_a_container_of_vertex_ai_is_kept_and_deployed(locations: Any, service: Served) -> None:
    _upload(locations, containerSpec=SPEC, artifactUri="")
    (uploaded,) = locations.models().list(parent=f"{PARENT}/locations/us-central1").execute()["models"]
    assert (uploaded["containerSpec"], uploaded["artifactUri"]) == (SPEC, "")
    _create(locations)
    _deploy(locations)
    record = service.context.models.get_version(project="local", model="digits", name="digits_net")
    container = record.container
    assert container is not None
    assert (container.image, container.command, container.arguments) == (IMAGE, ("serve",), tuple(SPEC["args"]))
    assert (container.env, container.routes.port) == ({"THREADS": "4"}, 7000)
    assert container.routes.predict == "/v1/endpoints/digits/deployedModels/digits_net:predict"
    assert container.routes.health == "/v1/endpoints/digits/deployedModels/digits_net"


def test_routes_of_vertex_ai_are_kept(locations: Any, service: Served) -> None:
    _upload(locations, containerSpec={"imageUri": IMAGE, "predictRoute": "/p", "healthRoute": "/h"})
    _create(locations)
    _deploy(locations)
    record = service.context.models.get_version(project="local", model="digits", name="digits_net")
    assert record.container is not None
    assert (record.container.routes.predict, record.container.routes.health) == ("/p", "/h")


def test_a_variable_that_is_given_twice_is_refused_at_the_upload(locations: Any) -> None:
    spec = {**SPEC, "env": [{"name": "A"}, {"name": "A"}]}
    _, reason = _refusal(lambda: _upload(locations, containerSpec=spec))
    assert reason.startswith("request: model.containerSpec.env; received 'A twice'")
