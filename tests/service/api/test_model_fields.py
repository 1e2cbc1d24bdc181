"""Every field that the contract has for models and versions, by Google's own client: honoured, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from googleapiclient.discovery_cache import get_static_doc
from googleapiclient.errors import HttpError
from pydantic import TypeAdapter

from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.scheduling import NodeSpec
from lockstep.service.prediction.routing import ServerAddress
from lockstep.service.prediction.servers import start_server
from lockstep.service.prediction.uses import WRITE_INTERVAL_S, LastUses
from lockstep.service.store import VersionState
from lockstep.serving.__main__ import _parse as server_parser_options
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

PARENT = "projects/local"
MODEL = f"{PARENT}/models/m"
VERSION = f"{MODEL}/versions/v1"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

MODEL_VALUES: Mapping[str, Any] = {
    "description": "digits",
    "labels": {"team": "vision"},
    "regions": ["europe-west4"],
    "onlinePredictionConsoleLogging": True,
}
REFUSED_OF_MODELS: Mapping[str, tuple[Any, int]] = {
    "onlinePredictionLogging": (True, 501),
    "onlinePredictionConsoleLogging": (False, 501),
    "regions": (["us-central1", "us-east1"], 400),
    "labels": ({"Team": "x"}, 400),
}
VERSION_VALUES: Mapping[str, Any] = {
    "description": "digits",
    "labels": {"team": "vision"},
    "deploymentUri": "/m/digits.keras",
    "packageUris": ["/p/code.tar.gz"],
    "pythonVersion": PYTHON,
    "framework": "TENSORFLOW",
    "machineType": "n1-standard-8",
    "acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"},
    "manualScaling": {"nodes": 3},
}
OUTPUT_OF_VERSIONS: Mapping[str, Any] = {
    "isDefault": True,
    "createTime": "2001-01-01T00:00:00Z",
    "lastUseTime": "2001-01-01T00:00:00Z",
    "lastMigrationTime": "2001-01-01T00:00:00Z",
    "lastMigrationModelId": "1",
    "state": "READY",
    "errorMessage": "none",
    "etag": "x",
}
REFUSED_OF_VERSIONS: Mapping[str, tuple[Any, int]] = {
    "runtimeVersion": ("2.4", 501),
    "pythonVersion": ("2.7", 400),
    "framework": ("XGBOOST", 501),
    "serviceAccount": ("me@project.iam.gserviceaccount.com", 501),
    "explanationConfig": ({"xraiAttribution": {}}, 501),
    "requestLoggingConfig": ({"samplingPercentage": 0.1}, 501),
    "deploymentUri": ("model", 400),
    "packageUris": (["code.tar.gz"], 400),
    "machineType": ("mls1-c1-m2", 400),
    "acceleratorConfig": ({"count": "3", "type": "NVIDIA_TESLA_T4"}, 400),
    "manualScaling": ({"nodes": 0}, 400),
    "nmae": ("m", 400),
}


def _fields(schema: str) -> set[str]:
    document = TypeAdapter(dict[str, Any]).validate_json(get_static_doc("ml", "v1") or "")
    return set(document["schemas"][f"GoogleCloudMlV1__{schema}"]["properties"])


def _refusal(call: Callable[[], Any]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        call()
    assert "\n" not in caught.value.reason
    return caught.value


@pytest.fixture
def models(service: Served) -> Any:
    """Google's client for models."""
    return service.google().models()


def _create_model(models: Any, **fields: Any) -> dict[str, Any]:
    return models.create(parent=PARENT, body={"name": "m", **fields}).execute()


def _create_version(models: Any, **fields: Any) -> dict[str, Any]:
    body = {"name": "v1", "deploymentUri": "/m", **fields}
    return models.versions().create(parent=MODEL, body=body).execute()


def test_every_field_of_the_contract_is_tested_here() -> None:
    assert {"name", "defaultVersion", "etag", *MODEL_VALUES, *REFUSED_OF_MODELS} == _fields("Model")
    # In test_scaling.py, below, and in test_container_versions.py.
    elsewhere = {"autoScaling", "predictionClass", "container", "routes"}
    assert {"name", *elsewhere, *VERSION_VALUES, *OUTPUT_OF_VERSIONS, *REFUSED_OF_VERSIONS} - {"nmae"} == _fields(
        "Version"
    )


def test_a_models_fields_are_kept_and_returned(models: Any) -> None:
    created = _create_model(models, **MODEL_VALUES, etag="x", defaultVersion={"name": "v0"})
    assert created.pop("etag") not in ("", "x")
    assert created == {"name": MODEL, **MODEL_VALUES}
    read = models.get(name=MODEL).execute()
    assert models.list(parent=PARENT, filter="regions:europe-west4").execute()["models"] == [read]
    assert models.list(parent=PARENT, filter="regions:us-central1").execute()["models"] == []


@pytest.mark.parametrize("field", REFUSED_OF_MODELS)
def test_what_a_model_cannot_have_is_refused_by_its_name(models: Any, field: str) -> None:
    value, status = REFUSED_OF_MODELS[field]
    error = _refusal(lambda: _create_model(models, **{field: value}))
    assert (error.status_code, field in error.reason) == (status, True), error.reason
    assert models.list(parent=PARENT).execute() == {"models": []}


def test_a_region_that_no_price_list_has_is_refused(models: Any) -> None:
    error = _refusal(lambda: _create_model(models, regions=["moon-1"]))
    assert error.reason.startswith("regions[0]; received 'moon-1'; allowed: us-")


def test_a_versions_fields_are_kept_and_returned(models: Any) -> None:
    _create_model(models)
    operation = _create_version(models, **VERSION_VALUES, **OUTPUT_OF_VERSIONS)
    version = models.versions().get(name=VERSION).execute()
    assert operation["metadata"]["version"] == version
    assert {key: version[key] for key in VERSION_VALUES} == VERSION_VALUES
    own = version.pop("lockstep")
    assert own == {
        "numReadyServers": 0,
        "waitingFor": f"its files, which are being copied from {version['deploymentUri']}",
    }
    assert version.keys() - VERSION_VALUES.keys() == {"name", "createTime", "state", "etag"}
    assert version["createTime"] > "2026"
    assert (version["state"], version["etag"] != "x") == ("CREATING", True)
    listed = models.versions().list(parent=MODEL, filter="acceleratorConfig.type=NVIDIA_TESLA_T4").execute()
    assert listed["versions"] == [version], "a list does not read the servers"


def test_a_routine_is_kept_and_returned_and_its_server_gets_it(models: Any, service: Served, bench: Bench) -> None:
    _create_model(models)
    routine = {"predictionClass": "trainer.predictor.Predictor", "packageUris": ["/p/code.tar.gz"]}
    _create_version(models, **routine, framework="SCIKIT_LEARN")
    version = models.versions().get(name=VERSION).execute()
    assert {key: version[key] for key in routine} == routine
    assert version["framework"] == "SCIKIT_LEARN"
    record = service.context.models.get_version(project="local", model="m", name="v1")
    start_server(record, jobs=bench.store, bucket=bench.settings.bucket, simulated=True)
    (server,) = bench.store.servers()
    asked = ["--model=deployed-model", "--prediction-class=trainer.predictor.Predictor"]
    assert server.training_input["args"] == asked


def test_batching_is_kept_and_returned_and_its_servers_get_it(models: Any, service: Served, bench: Bench) -> None:
    _create_model(models)
    asked = {"maxBatchSize": 128, "maxLatency": "0.005s"}
    _create_version(models, lockstep={"batching": asked})
    version = models.versions().get(name=VERSION).execute()
    assert version["lockstep"]["batching"] == asked
    record = service.context.models.get_version(project="local", model="m", name="v1")
    file = FileOrder(url="/b/m.keras", name="m.keras", sha256="0" * 64)
    start_server(replace(record, files=(file,)), jobs=bench.store, bucket=bench.settings.bucket, simulated=True)
    (server,) = bench.store.servers()
    options = server_parser_options(server.training_input["args"])
    assert (options.max_batch_size, options.max_latency_ms) == (128, 5.0)


@pytest.mark.parametrize("field", REFUSED_OF_VERSIONS)
def test_what_a_version_cannot_have_is_refused_by_its_name(models: Any, field: str) -> None:
    _create_model(models)
    value, status = REFUSED_OF_VERSIONS[field]
    error = _refusal(lambda: _create_version(models, **{field: value}))
    assert (error.status_code, field in error.reason) == (status, True), error.reason
    assert models.versions().list(parent=MODEL).execute() == {"versions": []}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"framework": "PYTORCH"}, "allowed: FRAMEWORK_UNSPECIFIED, TENSORFLOW"),
        ({"framework": "SCIKIT_LEARN"}, "prediction servers run Keras models, not those of SCIKIT_LEARN"),
        ({"deploymentUri": ""}, "deploymentUri is missing"),
        ({"deploymentUri": "ftp://m"}, "ftp"),
        (
            {"acceleratorConfig": {"count": "3", "type": "NVIDIA_TESLA_T4"}},
            "acceleratorConfig.count; received 3; allow",
        ),
        ({"acceleratorConfig": {"type": "NVIDIA_TESLA_T4"}}, "acceleratorConfig.count is missing"),
        ({"lockstep": {"pythonModule": "-c"}}, "lockstep.pythonModule; received '-c'"),
        (
            {"predictionClass": "Predictor"},
            "predictionClass; received 'Predictor'; allowed: a module and a class in it",
        ),
        ({"predictionClass": "a.b; import os"}, "predictionClass; received"),
        (
            {"lockstep": {"batching": {"maxBatchSize": 0}}},
            "lockstep.batching.maxBatchSize; received 0; allowed: greater",
        ),
        ({"lockstep": {"batching": {"maxLatency": "2s"}}}, "lockstep.batching.maxLatency; received '2s'; allowed"),
        (
            {
                "predictionClass": "a.B",
                "packageUris": ["/p/code.tar.gz"],
                "lockstep": {"batching": {"maxBatchSize": 8}},
            },
            "lockstep.batching is only for models",
        ),
        ({"predictionClass": "a.B"}, "packageUris is missing; allowed: a package with predictionClass"),
        (
            {"predictionClass": "a.B", "packageUris": ["/c.tar.gz"], "lockstep": {"pythonModule": "train"}},
            "lockstep.pythonModule is only for models",
        ),
    ],
)
def test_a_refusal_says_what_is_allowed(models: Any, fields: dict[str, Any], message: str) -> None:
    _create_model(models)
    assert message in _refusal(lambda: _create_version(models, **fields)).reason


def test_a_prediction_server_gets_the_accelerator_and_the_region(models: Any, service: Served, bench: Bench) -> None:
    _create_model(models, regions=["europe-west4"])
    _create_version(models, acceleratorConfig={"count": "2", "type": "NVIDIA_TESLA_T4"})
    made = service.context.models.get_version(project="local", model="m", name="v1")
    version = replace(made, files=(FileOrder(url="/m/m.keras", name="model.keras", sha256="0" * 64),))
    start_server(version, jobs=bench.store, bucket=bench.settings.bucket, simulated=True)
    (server,) = bench.store.servers()
    asked = server.training_input
    assert (asked["masterType"], asked["region"]) == ("n1-standard-4", "europe-west4")
    assert asked["masterConfig"] == {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"}}


@pytest.mark.parametrize("count", ["2", "4"])
def test_an_accelerator_that_no_node_has_is_refused(models: Any, bench: Bench, count: str) -> None:
    node = NodeSpec(name="n", node_type="n", resources={"vcpus": 8, "memory_mib": 32_768, "NVIDIA_TESLA_T4": 2})
    bench.cluster.set_nodes((node,), in_use={})
    _create_model(models)

    def create() -> dict[str, Any]:
        return _create_version(models, acceleratorConfig={"count": count, "type": "NVIDIA_TESLA_T4"})

    if count == "2":
        assert create()["metadata"]["operationType"] == "CREATE_VERSION"
    else:
        assert "machineType: no prediction server could ever run" in _refusal(create).reason


def test_the_last_use_is_recorded_apart_from_requests_and_once_a_minute(
    models: Any, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create_model(models)
    _create_version(models)
    store, routes = service.context.models, service.context.routes
    version = store.get_version(project="local", model="m", name="v1")
    assert store.update_version(version, state=VersionState.READY)
    now = {"clock": 1e9, "timer": 0.0}
    uses = LastUses(routes=routes, models=store, clock=lambda: now["clock"], timer=lambda: now["timer"])
    server = ServerAddress(uid="s", version_uid="v", url="http://127.0.0.1:1", token="t")
    monkeypatch.setattr(routes, "_read", lambda **_since: {version.uid: [server]})

    def shown(*, is_used: bool) -> str | None:
        if is_used:
            assert routes.find(project="local", model="m", version="v1") == [server]
        uses.step()
        return models.versions().get(name=VERSION).execute().get("lastUseTime")

    assert shown(is_used=False) is None
    assert shown(is_used=True) == "2001-09-09T01:46:40.000Z"
    now.update(clock=1e9 + 30, timer=30.0)
    assert shown(is_used=True) == "2001-09-09T01:46:40.000Z", "it was written less than a minute ago"
    now.update(clock=1e9 + 90, timer=WRITE_INTERVAL_S)
    assert shown(is_used=False) == "2001-09-09T01:47:10.000Z", "the use, not the time of writing"
