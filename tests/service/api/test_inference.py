"""The Open Inference Protocol at the service, by its own client, with real prediction servers behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tritonclient.http as triton
import uvicorn
from hypothesis import HealthCheck, example, given, settings
from tests.serving.bodies import bodies
from tritonclient.utils import InferenceServerException

import lockstep
from lockstep.jobs.security.access import Scope
from lockstep.service.prediction.routing import Route, Routes, ServerAddress
from lockstep.serving.app import AppOptions, PredictApp
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.model import LoadedModel
from lockstep.testing.served import HOME_TOKEN, Served

SERVER_TOKEN = "the-token-of-the-server"
HEADERS = {"authorization": f"Bearer {HOME_TOKEN}"}


def _model() -> keras.Model:
    """Returns a model with two inputs and outputs, and always the same weights."""
    keras.utils.set_random_seed(3)
    image = keras.Input((2, 3), name="image")
    rate = keras.Input((1,), name="rate", dtype="float16")
    flat = keras.layers.Flatten()(image)
    scores = keras.layers.Dense(4, name="scores")(keras.layers.Concatenate()([flat, rate]))
    total = keras.layers.Dense(1, name="total")(flat)
    return keras.Model({"image": image, "rate": rate}, {"scores": scores, "total": total})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerAddress]:
    """A prediction server in a thread."""
    loaded = LoadedModel(_model(), max_batch_size=4)
    app = PredictApp(loaded, options=AppOptions(token=SERVER_TOKEN, policy=BatchPolicy()))
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        time.sleep(0.001)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield ServerAddress(uid="s", version_uid="v", url=f"http://127.0.0.1:{port}", token=SERVER_TOKEN)
    running.should_exit = True
    thread.join(10)


@pytest.fixture
def routed(service: Served, server: ServerAddress, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A service that sends all requests to the server."""

    async def route(_self: Routes, **_asked: object) -> Route:
        return Route(version="v1", servers=[server])

    monkeypatch.setattr(Routes, "route", route)
    return service


@pytest.fixture
def client(routed: Served) -> Iterator[triton.InferenceServerClient]:
    """The protocol's client, at a project of the service."""
    base = f"{routed.url.removeprefix('http://')}/v1/projects/local"
    with triton.InferenceServerClient(base) as made:
        yield made


def _input(name: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


IMAGES = np.random.default_rng(5).normal(size=(3, 2, 3)).astype("float32")
RATES = np.array([[0.5], [1.5], [-2.0]], "float16")


def _inputs(**options: bool) -> list[triton.InferInput]:
    return [_input("image", IMAGES, "FP32", **options), _input("rate", RATES, "FP16")]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("version", ["", "v1"])
def test_the_protocols_client_gets_what_keras_predicts(
    client: triton.InferenceServerClient, binary_in: bool, binary_out: bool, version: str
) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("total", "scores")]
    found = client.infer(
        "m", _inputs(binary=binary_in), version, outputs=outputs, request_id="42", headers=dict(HEADERS)
    )
    expected = _model().predict({"image": IMAGES, "rate": RATES}, verbose=0)
    for name in ("scores", "total"):
        array = found.as_numpy(name)
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6)
    response = found.get_response()
    assert (response["id"], response["model_name"], response.get("model_version", "")) == ("42", "m", version)


def test_a_client_that_names_no_outputs_gets_all_of_them_in_binary(client: triton.InferenceServerClient) -> None:
    found = client.infer("m", _inputs(), headers=dict(HEADERS))
    sizes = {output["name"]: output["parameters"]["binary_data_size"] for output in found.get_response()["outputs"]}
    assert sizes == {"scores": 48, "total": 12}


def test_the_client_reads_metadata(client: triton.InferenceServerClient) -> None:
    server = client.get_server_metadata(headers=HEADERS)
    assert server == {"name": "lockstep", "version": lockstep.__version__, "extensions": ["binary_tensor_data"]}
    found = client.get_model_metadata("m", "v1", headers=HEADERS)
    assert (found["name"], found["versions"]) == ("m", ["v1"])
    assert found["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 2, 3]},
        {"name": "rate", "datatype": "FP16", "shape": [-1, 1]},
    ]
    assert {output["name"] for output in found["outputs"]} == {"scores", "total"}


@pytest.mark.parametrize(
    ("inputs", "options", "status", "message"),
    [
        ([_input("image", IMAGES, "FP32")], {}, "400", "input rate is missing; received ['image']"),
        ([_input("img", IMAGES, "FP32")], {}, "400", "inputs[0]: the model has no such input; received 'img'"),
        ([_input("image", IMAGES[:, :1], "FP32")], {}, "400", "input image: shape; received [3, 1, 3]"),
        (_inputs(), {"priority": 1}, "400", "the request: there is no parameter priority"),
        (_inputs(), {"request_compression_algorithm": "gzip"}, "415", "Content-Encoding; received 'gzip'"),
        (_inputs(), {"outputs": [triton.InferRequestedOutput("x")]}, "400", "outputs[0]: the model has no such output"),
    ],
)
def test_the_client_reads_why_a_request_was_refused(
    client: triton.InferenceServerClient, inputs: Any, options: dict[str, Any], status: str, message: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("m", inputs, headers=dict(HEADERS), **options)
    assert caught.value.status() == status
    assert caught.value.message().startswith(message)


def test_the_services_own_errors_have_the_protocols_form_too(service: Served) -> None:
    base = "/v1/projects/local/v2"
    missing = service.http.post(f"{base}/models/m/infer", json={})
    assert (missing.status_code, missing.json()) == (404, {"error": "project local has no model 'm'"})
    assert isinstance(service.client(None).get(f"{base}/health/live").json()["error"], str)
    assert isinstance(service.http.get(f"{base}/nowhere").json()["error"], str)
    assert isinstance(service.http.get(f"{base}/models/m%20").json()["error"], str)
    other = service.http.post(f"{base}/models/m/infer", content=b"x", headers={"content-type": "text/plain"})
    assert other.status_code == 415
    assert other.json()["error"].endswith("allowed: application/json, application/octet-stream")
    instances = service.http.post("/v1/projects/local/models/m:predict", content=b"x", headers=OCTETS)
    assert instances.json()["error"]["status"] == "INVALID_ARGUMENT", "instances are JSON"


OCTETS = {"content-type": "application/octet-stream"}


def test_a_model_is_ready_if_it_answers(service: Served, lab_model: str) -> None:
    base = f"{service.url.removeprefix('http://')}/v1/projects/local"
    with triton.InferenceServerClient(base) as client:
        assert client.is_server_live(headers=HEADERS)
        assert client.is_server_ready(headers=HEADERS)
        assert not client.is_model_ready("none", headers=HEADERS)
        assert not client.is_model_ready(lab_model, headers=HEADERS)
        assert not client.is_model_ready(lab_model, "v1", headers=HEADERS)
        why = service.http.get(f"/v1/projects/local/v2/models/{lab_model}/versions/v1/ready")
        assert (why.status_code, why.headers["retry-after"]) == (503, "1")
        assert why.json()["error"].startswith("version v1 of model m is CREATING")


@pytest.fixture
def lab_model(service: Served) -> str:
    """A model whose version has not started yet."""
    service.http.post("/v1/projects/local/models", json={"name": "m"})
    made = service.http.post("/v1/projects/local/models/m/versions", json={"name": "v1", "deploymentUri": "/m"})
    assert made.status_code == 200, made.text
    return "m"


def test_a_key_of_another_project_finds_no_model(routed: Served) -> None:
    key = routed.key(Scope.VIEWER, project="other")
    base = f"{routed.url.removeprefix('http://')}/v1/projects/local"
    with triton.InferenceServerClient(base) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("m", _inputs(), headers={"authorization": f"Bearer {key}"})
    assert caught.value.status() == "404"


FITTING = '{"image":[[1,2,3],[4,5,6]],"rate":[0.5]}'
PREDICT = "/v1/projects/local/models/m:predict"
QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_bodies_that_nobody_thought_of_are_answered_by_a_server_that_is_ready(routed: Served) -> None:
    statuses: set[int] = set()

    @QUICK
    @example(f'{{"instances":[{FITTING}]}}'.encode())
    @example(b'{"instances":[' + b"[" * 1000 + b"]" * 1000 + b"]}")
    @given(bodies(FITTING))
    def check(body: bytes) -> None:
        answers = [
            routed.http.post(path, content=body)
            for path in (PREDICT, PREDICT.replace("/models/", "/locations/us-central1/endpoints/"))
        ]
        first = answers[0]
        assert first.status_code in (200, 400), first.text
        assert list(first.json()) == (["predictions"] if first.status_code == 200 else ["error"])
        assert [answer.content for answer in answers] == [first.content] * 2
        statuses.add(first.status_code)

    check()
    assert statuses == {200, 400}
