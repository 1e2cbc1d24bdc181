"""Vertex AI's form of models and endpoints, by Google's own client for its REST interface."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import google.oauth2.credentials
import google_auth_httplib2
import httplib2
import pytest
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from lockstep.service.prediction.routing import Route, Routes, ServerAddress
from lockstep.service.store import VersionState
from lockstep.testing.served import HOME_TOKEN, Served

PARENT = "projects/local/locations/us-central1"
ENDPOINT = f"{PARENT}/endpoints/digits"
MODEL = f"{PARENT}/models/digits_net"
IMAGE = "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"
CPU = "aiplatform.googleapis.com/prediction/online/cpu/utilization"


@pytest.fixture
def locations(service: Served) -> Iterator[Any]:
    """Google's client for Vertex AI."""
    credentials = google.oauth2.credentials.Credentials(HOME_TOKEN)
    http = google_auth_httplib2.AuthorizedHttp(credentials, http=httplib2.Http())
    options = {"api_endpoint": service.url}
    with build("aiplatform", "v1", static_discovery=True, client_options=options, http=http) as made:
        yield made.projects().locations()


def _upload(locations: Any, **fields: Any) -> dict[str, Any]:
    model = {"displayName": "digits net", "artifactUri": "/m", **fields}
    return locations.models().upload(parent=PARENT, body={"model": model}).execute()


def _create(locations: Any, **fields: Any) -> dict[str, Any]:
    body = {"displayName": "digits", **fields}
    return locations.endpoints().create(parent=PARENT, body=body).execute()


def _deploy(locations: Any, *, split: dict[str, int] | None = None, **fields: Any) -> dict[str, Any]:
    resources = {"machineSpec": {"machineType": "n1-standard-8"}, "minReplicaCount": 1}
    body: dict[str, Any] = {"deployedModel": {"model": MODEL, "dedicatedResources": resources, **fields}}
    if split is not None:
        body["trafficSplit"] = split
    return locations.endpoints().deployModel(endpoint=ENDPOINT, body=body).execute()


def _make_ready(service: Served, version: str) -> None:
    store = service.context.models
    record = store.get_version(project="local", model="digits", name=version)
    assert store.update_version(record, state=VersionState.READY)


def _refusal(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        call()
    assert "\n" not in caught.value.reason
    return caught.value.status_code, caught.value.reason


def test_a_model_is_uploaded_listed_and_deleted(locations: Any) -> None:
    operation = _upload(locations, description="a net", labels={"team": "vision"}, containerSpec={"imageUri": IMAGE})
    assert operation["done"]
    assert operation["response"]["model"] == MODEL
    assert locations.operations().get(name=operation["name"]).execute() == operation
    model = locations.models().get(name=MODEL).execute()
    assert (model["displayName"], model["artifactUri"], model["versionId"]) == ("digits_net", "/m", "1")
    assert (model["description"], model["labels"]) == ("a net", {"team": "vision"})
    assert model["containerSpec"] == {"imageUri": IMAGE}
    assert locations.models().get(name=f"{MODEL}@1").execute() == model
    versions = locations.models().listVersions
    for name, chosen, expected in ((MODEL, "", [model]), (f"{MODEL}@1", "labels.team=vision", [model])):
        assert versions(name=name, filter=chosen, pageSize=1).execute() == {"models": expected}
    assert versions(name=MODEL, filter="labels.team=speech").execute() == {"models": []}
    assert _refusal(versions(name=f"{MODEL}x").execute)[0] == 404
    for chosen, expected in (('display_name="digits_net"', [model]), ("labels.team=speech", [])):
        assert locations.models().list(parent=PARENT, filter=chosen).execute()["models"] == expected
    elsewhere = PARENT.replace("us-central1", "europe-west4")
    assert locations.models().list(parent=elsewhere).execute()["models"] == []
    assert _refusal(lambda: _upload(locations))[0] == 409
    assert locations.models().delete(name=MODEL).execute()["done"]
    assert _refusal(locations.models().get(name=MODEL).execute)[0] == 404


def test_an_endpoint_is_a_model_here(service: Served, locations: Any) -> None:
    operation = _create(locations, description="for digits", labels={"team": "vision"})
    assert operation["done"]
    assert operation["response"]["name"] == ENDPOINT
    assert locations.operations().get(name=operation["name"]).execute() == operation
    endpoint = locations.endpoints().get(name=ENDPOINT).execute()
    assert (endpoint["displayName"], endpoint["deployedModels"], endpoint["trafficSplit"]) == ("digits", [], {})
    assert locations.endpoints().list(parent=PARENT, filter='display_name="digits"').execute()["endpoints"] == [
        endpoint
    ]
    model = service.http.get("/v1/projects/local/models/digits").json()
    assert (model["regions"], model["description"]) == (["us-central1"], "for digits")
    named = (
        locations.endpoints().create(parent=PARENT, endpointId="other", body={"displayName": "My endpoint"}).execute()
    )
    assert named["response"]["name"] == f"{PARENT}/endpoints/other"
    assert locations.endpoints().delete(name=ENDPOINT).execute()["done"]
    assert _refusal(locations.endpoints().get(name=ENDPOINT).execute)[0] == 404


def test_a_deployed_model_is_a_version_and_its_operation_is_done_when_that_is_ready(
    service: Served, locations: Any
) -> None:
    _upload(locations)
    _create(locations)
    resources = {
        "machineSpec": {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2},
        "minReplicaCount": 0,
        "maxReplicaCount": 3,
        "autoscalingMetricSpecs": [{"metricName": CPU, "target": 70}],
    }
    operation = _deploy(locations, split={"0": 100}, displayName="first net", dedicatedResources=resources)
    assert "done" not in operation
    version = service.http.get("/v1/projects/local/models/digits/versions/first_net").json()
    assert (version["deploymentUri"], version["machineType"]) == ("/m", "n1-standard-8")
    assert version["acceleratorConfig"] == {"count": "2", "type": "NVIDIA_TESLA_T4"}
    assert version["autoScaling"] == {
        "minNodes": 0,
        "maxNodes": 3,
        "metrics": [{"name": "CPU_USAGE", "target": 70}],
    }
    endpoint = locations.endpoints().get(name=ENDPOINT).execute()
    assert endpoint["deployedModels"][0]["status"]["message"].startswith("CREATING")
    assert endpoint["trafficSplit"] == {}
    _make_ready(service, "first_net")
    done = locations.operations().get(name=operation["name"]).execute()
    assert done["done"]
    deployed = done["response"]["deployedModel"]
    assert (deployed["id"], deployed["model"], deployed["dedicatedResources"]) == ("first_net", MODEL, resources)
    endpoint = locations.endpoints().get(name=ENDPOINT).execute()
    assert (endpoint["deployedModels"], endpoint["trafficSplit"]) == ([deployed], {"first_net": 100})
    model = locations.models().get(name=MODEL).execute()
    assert model["deployedModels"] == [{"endpoint": ENDPOINT, "deployedModelId": "first_net"}]
    assert _refusal(locations.models().delete(name=MODEL).execute) == (
        400,
        "uploaded model digits_net is deployed: version first_net of digits; undeploy it first",
    )


@pytest.mark.parametrize(
    ("split", "expected"), [({"0": 100}, "digits_net_2"), ({"0": 0, "digits_net": 100}, "digits_net")]
)
def test_the_traffic_moves_to_a_new_model_once_it_is_ready_if_that_was_asked_for(
    service: Served, locations: Any, split: dict[str, int], expected: str
) -> None:
    _upload(locations)
    _create(locations)
    _deploy(locations)
    _make_ready(service, "digits_net")
    _deploy(locations, split=split)

    def traffic() -> Any:
        return locations.endpoints().get(name=ENDPOINT).execute()["trafficSplit"]

    assert traffic() == {"digits_net": 100}, "a model that is not ready gets no traffic"
    _make_ready(service, "digits_net_2")
    assert traffic() == {expected: 100}
    body = {"trafficSplit": {"digits_net": 100}, "description": "back"}
    patched = locations.endpoints().patch(name=ENDPOINT, updateMask="traffic_split,description", body=body).execute()
    assert (patched["trafficSplit"], patched["description"]) == ({"digits_net": 100}, "back")


def test_a_new_model_gets_a_share_once_it_is_ready(service: Served, locations: Any) -> None:
    _upload(locations)
    _create(locations)
    for name in ("a", "b"):
        _deploy(locations, id=name)
        _make_ready(service, name)
    _deploy(locations, id="c", split={"0": 20, "a": 50, "b": 30})

    def traffic() -> Any:
        return locations.endpoints().get(name=ENDPOINT).execute()["trafficSplit"]

    assert traffic() == {"a": 100}
    _make_ready(service, "c")
    assert traffic() == {"a": 50, "b": 30, "c": 20}
    _deploy(locations, id="d", split={"0": 20, "b": 50, "c": 30})
    body = {"deployedModelId": "b", "trafficSplit": {"a": 60, "c": 40}}
    locations.endpoints().undeployModel(endpoint=ENDPOINT, body=body).execute()
    assert traffic() == {"a": 60, "c": 40}
    _make_ready(service, "d")
    assert traffic() == {"d": 70, "c": 30}, "it gets the share of one that is gone, too"
    _deploy(locations, id="e", split={"0": 20, "d": 80})
    store = service.context.models
    store.set_default(project="local", model="digits", name="c", changed_by="test")
    store.begin_delete_version(project="local", model="digits", name="d", deleted_by="test")
    store.remove_version(store.get_version(project="local", model="digits", name="d"))
    _deploy(locations, id="d")
    _make_ready(service, "d")
    _make_ready(service, "e")
    assert traffic() == {"e": 100}, "another model of the same name gets no share"
    store.set_default(project="local", model="digits", name="d", changed_by="test")
    refused = {"deployedModelId": "c", "trafficSplit": {"c": 10, "d": 90}}
    undeploy = locations.endpoints().undeployModel(endpoint=ENDPOINT, body=refused)
    assert _refusal(undeploy.execute)[1].startswith("trafficSplit; received {'c': 10, 'd': 90}")


def test_a_model_is_undeployed_and_the_traffic_moves_first(service: Served, locations: Any) -> None:
    _upload(locations)
    _create(locations)
    for name in ("a", "b"):
        _deploy(locations, id=name)
        _make_ready(service, name)
    undeploy = locations.endpoints().undeployModel
    refused = _refusal(undeploy(endpoint=ENDPOINT, body={"deployedModelId": "a"}).execute)
    assert (refused[0], refused[1].partition(";")[0]) == (
        400,
        "version a has 100% of the traffic of digits, and is its default",
    )
    body = {"deployedModelId": "a", "trafficSplit": {"b": 100}}
    patch = locations.endpoints().patch
    split = patch(name=ENDPOINT, updateMask="trafficSplit", body={"trafficSplit": {"a": 30, "b": 70}}).execute()
    assert split["trafficSplit"] == {"a": 30, "b": 70}
    assert "has 30% of the traffic" in _refusal(undeploy(endpoint=ENDPOINT, body={"deployedModelId": "a"}).execute)[1]
    operation = undeploy(endpoint=ENDPOINT, body=body).execute()
    assert operation["metadata"]["@type"].endswith("UndeployModelOperationMetadata")
    endpoint = locations.endpoints().get(name=ENDPOINT).execute()
    assert ([model["id"] for model in endpoint["deployedModels"]], endpoint["trafficSplit"]) == (["b"], {"b": 100})
    assert _refusal(locations.endpoints().delete(name=ENDPOINT).execute)[0] == 400


def _mutate(locations: Any, mask: str, **resources: Any) -> dict[str, Any]:
    body = {"deployedModel": {"id": "a", "dedicatedResources": resources}, "updateMask": mask}
    return locations.endpoints().mutateDeployedModel(endpoint=ENDPOINT, body=body).execute()


def test_a_deployed_model_gets_other_numbers_of_replicas(service: Served, locations: Any) -> None:
    _upload(locations)
    _create(locations)
    machine = {"machineSpec": {"machineType": "n1-standard-8"}}
    _deploy(locations, id="a", dedicatedResources={**machine, "minReplicaCount": 1, "maxReplicaCount": 3})
    both = "dedicated_resources.min_replica_count,dedicatedResources.maxReplicaCount"
    assert _refusal(lambda: _mutate(locations, both, minReplicaCount=2, maxReplicaCount=5))[0] == 400, "not READY"
    _make_ready(service, "a")
    operation = _mutate(locations, both, minReplicaCount=2, maxReplicaCount=5)
    assert operation["metadata"]["@type"].endswith("MutateDeployedModelOperationMetadata")
    (deployed,) = locations.endpoints().get(name=ENDPOINT).execute()["deployedModels"]
    resources = deployed["dedicatedResources"]
    assert (resources["minReplicaCount"], resources["maxReplicaCount"]) == (2, 5)
    _mutate(locations, "dedicatedResources.maxReplicaCount", minReplicaCount=1, maxReplicaCount=2)
    (deployed,) = locations.endpoints().get(name=ENDPOINT).execute()["deployedModels"]
    assert deployed["dedicatedResources"] == {**resources, "maxReplicaCount": 2}, "only the paths of the mask are read"
    for mask, given, message in (
        ("dedicatedResources.machineSpec", {}, "updateMask; received 'dedicatedResources.machineSpec'; allowed: "),
        ("dedicatedResources.autoscalingMetricSpecs", {}, "updateMask: dedicatedResources.autoscalingMetricSpecs: "),
        ("dedicatedResources.minReplicaCount", {}, "request: deployedModel.dedicatedResources.minReplicaCount is"),
        ("", {}, "updateMask: it names no field"),
        (both, {"minReplicaCount": 3, "maxReplicaCount": 2}, "deployedModel.dedicatedResources.maxReplicaCount; "),
        (both, {"minReplicaCount": "x", "maxReplicaCount": 2}, "deployedModel.dedicatedResources.minReplicaCount"),
    ):
        status, reason = _refusal(lambda mask=mask, given=given: _mutate(locations, mask, **given))
        assert status in (400, 501)
        assert reason.startswith(message)


def test_a_fixed_number_of_replicas_stays_fixed(service: Served, locations: Any) -> None:
    _upload(locations)
    _create(locations)
    _deploy(locations, id="a")
    _make_ready(service, "a")
    least, most = "dedicatedResources.minReplicaCount", "dedicatedResources.maxReplicaCount"
    message = "deployed model a has a fixed number of replicas, and does not scale"
    assert _refusal(lambda: _mutate(locations, least, minReplicaCount=2))[1].startswith(message)
    operation = _mutate(locations, f"{least},{most}", minReplicaCount=2, maxReplicaCount=2)
    assert "done" not in operation, "its second replica is not ready"
    version = service.http.get("/v1/projects/local/models/digits/versions/a").json()
    assert version["manualScaling"] == {"nodes": 2}


def test_an_operation_is_waited_for(service: Served, locations: Any) -> None:
    _upload(locations)
    _create(locations)
    operation = _deploy(locations, id="a")
    wait = locations.operations().wait
    assert "done" not in wait(name=operation["name"], timeout="0.1s").execute()
    timer = threading.Timer(0.5, _make_ready, args=(service, "a"))
    timer.start()
    done = wait(name=operation["name"], timeout="60s").execute()
    timer.join()
    assert done["response"]["deployedModel"]["id"] == "a"
    for text in ("soon", "-1s", "1", "infs", "1e9s"):
        assert _refusal(wait(name=operation["name"], timeout=text).execute)[1].startswith("timeout; received")
    assert _refusal(wait(name=f"{PARENT}/operations/none", timeout="1s").execute)[0] == 404


def test_the_description_and_the_labels_of_an_uploaded_model_change(locations: Any) -> None:
    _upload(locations, description="a net", labels={"team": "vision"})
    patch = locations.models().patch
    before = locations.models().get(name=MODEL).execute()
    body = {**before, "description": "another", "labels": {"team": "speech"}}
    patched = patch(name=MODEL, updateMask="description", body=body).execute()
    assert (patched["description"], patched["labels"]) == ("another", {"team": "vision"})
    assert patched["updateTime"] > patched["createTime"] == before["createTime"]
    patched = patch(name=MODEL, updateMask="labels,description", body={"labels": {"a": "b"}}).execute()
    assert (patched.get("description"), patched["labels"]) == (None, {"a": "b"})
    assert locations.models().get(name=MODEL).execute() == patched
    for mask, message in (
        ("displayName", "updateMask: displayName is the model's name"),
        ("artifactUri", "updateMask; received 'artifactUri'; allowed: description, labels"),
        ("", "updateMask: it names no field"),
    ):
        assert _refusal(patch(name=MODEL, updateMask=mask, body={}).execute)[1].startswith(message)
    assert _refusal(patch(name=f"{MODEL}x", updateMask="labels", body={}).execute)[0] == 404


def test_a_deployment_that_failed_is_shown_with_its_reason(service: Served, locations: Any) -> None:
    _upload(locations)
    _create(locations)
    operation = _deploy(locations)
    store = service.context.models
    record = store.get_version(project="local", model="digits", name="digits_net")
    store.update_version(record, state=VersionState.FAILED, error_message="there is no such file")
    found = locations.operations().get(name=operation["name"]).execute()
    assert found["error"] == {"code": 9, "message": "there is no such file"}
    (deployed,) = locations.endpoints().get(name=ENDPOINT).execute()["deployedModels"]
    assert deployed["status"]["message"] == "FAILED: there is no such file"


def test_operations_are_found_where_googles_sdk_asks_for_them(locations: Any, service: Served) -> None:
    """Its REST transport polls paths that begin with /ui, and not with the version of the API."""
    _upload(locations)
    _create(locations)
    operation = _deploy(locations)
    for name in (operation["name"], f"{PARENT}/operations/upload_model_digits_net"):
        answer = service.http.get(f"/ui/{name}")
        assert (answer.status_code, answer.json()) == (200, locations.operations().get(name=name).execute())
    assert service.http.post(f"/ui/{operation['name']}:cancel").status_code == 200
    assert service.client(None).get(f"/ui/{operation['name']}").status_code == 401


def test_a_deployment_can_be_cancelled(locations: Any) -> None:
    _upload(locations)
    _create(locations)
    operation = _deploy(locations)
    locations.operations().cancel(name=operation["name"]).execute()
    found = locations.operations().get(name=operation["name"]).execute()
    assert found["error"]["code"] == 1
    assert [each["name"] for each in locations.operations().list(name=PARENT).execute()["operations"]] == [
        operation["name"]
    ]


REFUSED_UPLOADS: dict[str, Any] = {
    "model.containerSpec.imageUri": {"containerSpec": {"imageUri": "gcr.io/Mine/server:1"}},
    "model.containerSpec.predictRoute": {"containerSpec": {"imageUri": IMAGE, "predictRoute": "/p"}},
    "model.containerSpec.grpcPorts": {"containerSpec": {"imageUri": "mine:1", "grpcPorts": [{"containerPort": 1}]}},
    "model.containerSpec.startupProbe": {"containerSpec": {"imageUri": "mine:1", "startupProbe": {"periodSeconds": 1}}},
    "request: model.containerSpec.healthRoute": {"containerSpec": {"imageUri": "mine:1", "healthRoute": "alive"}},
    "request: model.artifactUri is missing": {"artifactUri": ""},
    "model.explanationSpec": {"explanationSpec": {"parameters": {}}},
    "model.encryptionSpec": {"encryptionSpec": {"kmsKeyName": "k"}},
    "request: model.versionAliases": {"versionAliases": ["champion"]},
    "request: unknown key model.displayNmae": {"displayNmae": "x"},
    "model.artifactUri": {"artifactUri": "relative"},
}
REFUSED_DEPLOYMENTS: dict[str, Any] = {
    "deployedModel.serviceAccount": {"serviceAccount": "me@x"},
    "deployedModel.sharedResources": {"sharedResources": "pool"},
    "deployedModel.enableAccessLogging": {"enableAccessLogging": True},
    "deployedModel.dedicatedResources.spot": {
        "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-4"}, "minReplicaCount": 1, "spot": True}
    },
    "deployedModel.dedicatedResources.machineSpec.machineType": {
        "dedicatedResources": {"machineSpec": {"machineType": "none-such"}, "minReplicaCount": 1}
    },
    "deployedModel: it needs either dedicatedResources or automaticResources": {"dedicatedResources": None},
    "deployedModel.model": {"model": "digits_net"},
    "project local has no uploaded model": {"model": f"{PARENT}/models/other"},
}
REFUSED_ENDPOINTS: dict[str, Any] = {
    "network": {"network": "n"},
    "encryptionSpec": {"encryptionSpec": {"kmsKeyName": "k"}},
    "dedicatedEndpointEnabled": {"dedicatedEndpointEnabled": True},
    "trafficSplit": {"trafficSplit": {"a": 100}},
    "request: displayName": {"displayName": "7"},
}


@pytest.mark.parametrize("message", REFUSED_UPLOADS)
def test_what_an_upload_cannot_have_is_refused_by_its_name(locations: Any, message: str) -> None:
    status, reason = _refusal(lambda: _upload(locations, **REFUSED_UPLOADS[message]))
    assert reason.startswith(message)
    assert status in (400, 501)


@pytest.mark.parametrize("message", REFUSED_ENDPOINTS)
def test_what_an_endpoint_cannot_have_is_refused_by_its_name(locations: Any, message: str) -> None:
    assert _refusal(lambda: _create(locations, **REFUSED_ENDPOINTS[message]))[1].startswith(message)


@pytest.mark.parametrize("message", REFUSED_DEPLOYMENTS)
def test_what_a_deployment_cannot_have_is_refused_by_its_name(locations: Any, message: str) -> None:
    _upload(locations)
    _create(locations)
    assert _refusal(lambda: _deploy(locations, **REFUSED_DEPLOYMENTS[message]))[1].startswith(message)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"0": 50, "b": 50}, "model digits has no version 'b'"),
        ({"0": 50, "a": 50}, "version a of digits is CREATING, and answers no requests"),
        ({"0": 70}, "trafficSplit; received {'0': 70}; allowed: shares of 100 in total"),
        ({"0": 150, "b": -50}, "trafficSplit; received {'0': 150, 'b': -50}; allowed: shares of 100 in total"),
    ],
)
def test_a_split_that_cannot_be_is_refused(locations: Any, split: dict[str, int], message: str) -> None:
    _upload(locations)
    _create(locations)
    _deploy(locations, id="a")
    assert message in _refusal(lambda: _deploy(locations, split=split))[1]


def test_what_of_an_endpoint_cannot_change_is_refused(locations: Any) -> None:
    _create(locations)
    for mask, message in (
        ("displayName", "updateMask: displayName is the endpoint's name"),
        ("network", "updateMask; received 'network'; allowed: description, labels, trafficSplit"),
        ("", "updateMask: it names no field"),
        ("trafficSplit", "trafficSplit; received {'a': 70}; allowed: whole percents from 0 to 100 that sum to 100"),
    ):
        patch = locations.endpoints().patch(name=ENDPOINT, updateMask=mask, body={"trafficSplit": {"a": 70}})
        assert _refusal(patch.execute)[1].startswith(message)
    stale = {"etag": "1-0", "description": "x"}
    patch = locations.endpoints().patch(name=ENDPOINT, updateMask="description", body=stale)
    assert _refusal(patch.execute)[0] == 409


def test_lists_refuse_what_they_do_not_honour(locations: Any) -> None:
    assert _refusal(locations.endpoints().list(parent=PARENT, orderBy="display_name").execute)[0] == 501
    assert _refusal(locations.models().list(parent=PARENT, readMask="name").execute)[0] == 501
    assert locations.endpoints().list(parent=PARENT, orderBy="create_time desc").execute()["endpoints"] == []
    nowhere = PARENT.replace("us-central1", "mars-1")
    assert _refusal(locations.endpoints().create(parent=nowhere, body={"displayName": "x"}).execute)[0] == 400


class Answers(http.server.BaseHTTPRequestHandler):
    """A prediction server that says what it received."""

    received: ClassVar[list[tuple[str, str | None, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, self.headers["inference-header-content-length"], body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"predictions": [7]}')


def test_predictions_are_passed_on(service: Served, locations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Answers.received.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(3)])
        thread.start()
        found = [ServerAddress(uid="s", version_uid="v", url=f"http://127.0.0.1:{server.server_port}", token="t")]

        async def route(_self: Routes, **_asked: object) -> Route:
            return Route(version="v1", servers=found)

        monkeypatch.setattr(Routes, "route", route)
        predicted = locations.endpoints().predict(endpoint=ENDPOINT, body={"instances": [[1]]}).execute()
        raw = service.http.post(f"/v1/{ENDPOINT}:rawPredict", content=b'{"instances": [[2]]}')
        headers = {"inference-header-content-length": "2", "content-type": "application/octet-stream"}
        service.http.post(f"/v1/{ENDPOINT}:rawPredict", content=b"{}\x00\xff", headers=headers)
        thread.join()
    assert (predicted["predictions"], raw.json()) == ([7], {"predictions": [7]})
    assert [(path, header) for path, header, _ in Answers.received] == [
        ("/predict", None),
        ("/predict", None),
        ("/v2/models/digits/infer", "2"),
    ]
    assert Answers.received[2][2] == b"{}\x00\xff"
