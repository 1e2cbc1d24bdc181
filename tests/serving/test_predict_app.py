"""The HTTP interface, without a process of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import keras
import numpy as np
import pytest
from starlette.types import Message
from tests.serving.asgi import running

from lockstep.serving import app as serving_app
from lockstep.serving.answering import base
from lockstep.serving.app import AppOptions, PredictApp
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.model import LoadedModel
from lockstep.serving.routine import Routine
from lockstep.tensors import HEADER_LENGTH, SIZE

TOKEN = "a-token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
IMAGE = np.arange(24, dtype=np.uint8).reshape(6, 4)
OPTIONS = AppOptions(token=TOKEN, policy=BatchPolicy(max_latency_s=0), max_body_bytes=4096)

SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/predict",
    "query_string": b"",
    "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
}

Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def model(model_url: str) -> LoadedModel:
    return LoadedModel.load(model_url, max_batch_size=8)


@pytest.fixture
def ask(model: LoadedModel) -> Ask:
    """Starts the application, sends one request, and ends the application."""

    def send(method: str, path: str, *, options: AppOptions = OPTIONS, **request: object) -> httpx.Response:
        async def exchange() -> httpx.Response:
            app = PredictApp(model, options=options)
            async with running(app):
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                    return await client.request(method, path, **request)

        return asyncio.run(exchange())

    return send


def test_instances_are_answered_by_predictions(ask: Ask, image_model: keras.Model) -> None:
    encoded = {"b64": base64.b64encode(IMAGE.tobytes()).decode()}
    response = ask("POST", "/predict", json={"instances": [IMAGE.tolist(), encoded]}, headers=HEADERS)
    assert response.status_code == 200
    expected = image_model.predict(IMAGE[None], verbose=0)
    np.testing.assert_allclose(response.json()["predictions"], np.repeat(expected, 2, 0), rtol=1e-6)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", f"bearer {TOKEN}", TOKEN, "Bearer \u00e9"])
def test_a_request_without_the_token_is_refused(ask: Ask, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    response = ask("POST", "/predict", json={"instances": [IMAGE.tolist()]}, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"].startswith("the request is not authorised")


def test_health_needs_no_token(ask: Ask) -> None:
    assert ask("GET", "/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"{}", 400, "the body has no instances"),
        (b'{"instances": [[1, 2]]}', 400, "instances[0]: shape; received [2]; allowed: [6, 4]"),
        (b'{"instances": [{"b64": "AAAA"}]}', 400, "instances[0]: bytes; received '3 bytes'; allowed: 24 bytes"),
        (b" " * 5000, 413, "the request is too large; allowed: 4096 bytes"),
    ],
)
def test_bad_requests_say_what_was_wrong(ask: Ask, body: bytes, status: int, message: str) -> None:
    response = ask("POST", "/predict", content=body, headers=HEADERS)
    assert response.status_code == status
    assert response.json()["error"].startswith(message)


def test_other_paths_and_methods_answer_in_the_same_form(ask: Ask) -> None:
    assert ask("GET", "/none").json() == {"error": "there is no such path"}
    assert ask("GET", "/predict").json() == {"error": "the method is not POST"}


def _inference(array: np.ndarray, *, header: int = 0, **more: object) -> dict[str, object]:
    """Returns the content and the headers of a request with a binary tensor; `header` falsifies the JSON's length."""
    entry = {"name": "image", "shape": list(array.shape), "datatype": "UINT8", "parameters": {SIZE: array.nbytes}}
    head = json.dumps({"inputs": [entry], **more}).encode()
    headers = HEADERS | {HEADER_LENGTH: str(len(head) + header)}
    return {"content": head + array.tobytes(), "headers": headers}


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/any/versions/v7/infer"])
def test_binary_tensors_are_answered_by_binary_tensors(ask: Ask, image_model: keras.Model, path: str) -> None:
    batch = np.stack([IMAGE, IMAGE[::-1]])
    response = ask("POST", path, **_inference(batch, parameters={"binary_data_output": True}))
    assert response.status_code == 200, response.text
    length = int(response.headers[HEADER_LENGTH])
    document = json.loads(response.content[:length])
    assert f"/{document['model_name']}/" in path
    (output,) = document["outputs"]
    assert output["datatype"] == "FP32"
    found = np.frombuffer(response.content[length:], "<f4").reshape(output["shape"])
    np.testing.assert_allclose(found, image_model.predict(batch, verbose=0), rtol=1e-6)


def test_a_tensor_is_answered_as_the_instances_are(ask: Ask) -> None:
    response = ask("POST", "/v2/models/m/infer", **_inference(IMAGE[None]))
    predictions = ask("POST", "/predict", json={"instances": [IMAGE.tolist()]}, headers=HEADERS).json()["predictions"]
    assert response.headers["content-type"] == "application/json"
    assert response.json()["outputs"][0]["data"] == predictions[0]


def test_inference_needs_the_token_and_the_servers_own_paths_do_not(ask: Ask) -> None:
    request = _inference(IMAGE[None])
    assert ask("POST", "/v2/models/m/infer", content=request["content"]).status_code == 401
    assert ask("GET", "/v2/models/m").status_code == 401
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"):
        assert ask("GET", path).status_code == 200, path


def test_the_metadata_are_the_models_tensors(ask: Ask) -> None:
    document = ask("GET", "/v2/models/m", headers=HEADERS).json()
    assert document["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 6, 4]}]
    ((output),) = document["outputs"]
    assert (output["datatype"], output["shape"]) == ("FP32", [-1, 3])


def test_bad_inference_requests_are_refused_in_the_same_form(ask: Ask) -> None:
    response = ask("POST", "/v2/models/m/infer", **_inference(IMAGE[None, :3]))
    assert response.status_code == 400
    assert response.json() == {"error": "input image: shape; received [1, 3, 4]; allowed: [any, 6, 4]"}
    assert ask("POST", "/v2/models/m/infer", **_inference(IMAGE[None], header=99)).status_code == 400
    assert ask("GET", "/v2/models/m/infer").json() == {"error": "the method is not POST"}


@pytest.mark.parametrize("path", ["/predict", "/v2/models/m/infer"])
def test_a_compressed_body_is_refused(ask: Ask, path: str) -> None:
    response = ask("POST", path, content=b"x", headers=HEADERS | {"Content-Encoding": "gzip"})
    assert response.status_code == 415
    assert response.json()["error"] == "Content-Encoding; received 'gzip'; allowed: identity"


def test_an_overloaded_server_answers_429(ask: Ask) -> None:
    options = AppOptions(token=TOKEN, policy=BatchPolicy(max_waiting=0))
    response = ask("POST", "/predict", options=options, json={"instances": [IMAGE.tolist()]}, headers=HEADERS)
    assert response.status_code == 429
    assert response.json()["error"].startswith("the prediction server has too many requests waiting")
    assert response.headers["retry-after"] == "1"


def test_what_a_client_no_longer_waits_for_is_not_computed(ask: Ask) -> None:
    # Nobody else comes for so long that only the client's own limit can end the wait.
    options = AppOptions(token=TOKEN, policy=BatchPolicy(max_latency_s=60))
    headers = HEADERS | {"X-Server-Timeout": "0.05"}
    response = ask("POST", "/predict", options=options, json={"instances": [IMAGE.tolist()]}, headers=headers)
    assert response.status_code == 504
    assert response.json()["error"].startswith("no prediction within 0.05 s (X-Server-Timeout)")


@pytest.mark.parametrize("given", ["soon", "-1", "0", "nan", "inf", ""])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(ask: Ask, given: str) -> None:
    response = ask("POST", "/predict", json={"instances": []}, headers=HEADERS | {"X-Server-Timeout": given})
    assert response.status_code == 400
    assert response.json()["error"] == f"X-Server-Timeout; received {given!r}; allowed: a number of seconds"


def test_an_end_of_the_server_is_not_taken_for_a_client_that_has_gone(model: LoadedModel) -> None:
    async def check() -> bool:
        app = PredictApp(model, options=AppOptions(token=TOKEN, policy=BatchPolicy(max_latency_s=60)))
        body = json.dumps({"instances": [IMAGE.tolist()]}).encode()
        incoming: list[Message] = [{"type": "http.request", "body": body}]
        is_watching, never = asyncio.Event(), asyncio.Event()

        async def receive() -> Message:
            if incoming:
                return incoming.pop(0)
            is_watching.set()
            await never.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            raise AssertionError(message)

        async with running(app):
            task = asyncio.create_task(app(SCOPE, receive, send))
            await asyncio.wait_for(is_watching.wait(), 20)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return task.cancelled()

    assert asyncio.run(check())


def test_ready_is_said_once_when_requests_are_taken(ask: Ask) -> None:
    said: list[str] = []
    options = AppOptions(token=TOKEN, policy=BatchPolicy(), on_ready=lambda: said.append("ready"))
    assert ask("GET", "/healthz", options=options).status_code == 200
    assert said == ["ready"]


def test_nothing_is_computed_for_a_client_that_has_gone(model: LoadedModel) -> None:
    async def check() -> int:
        # Nobody comes for so long that only the hang-up can end the wait.
        app = PredictApp(model, options=AppOptions(token=TOKEN, policy=BatchPolicy(max_latency_s=60)))
        body = json.dumps({"instances": [IMAGE.tolist()]}).encode()
        incoming: list[Message] = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        sent: list[Message] = []

        async def receive() -> Message:
            return incoming.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        async with running(app):
            await asyncio.wait_for(app(SCOPE, receive, send), 20)
        return int(sent[0]["status"])

    assert asyncio.run(check()) == 499


class Blocking:
    """A custom prediction routine whose calls end when a test says so."""

    max_concurrent_calls = 2

    def __init__(self, end: threading.Event) -> None:
        self._end = end

    def predict(self, instances: list[Any]) -> list[Any]:
        self._end.wait(60)
        return instances


@pytest.mark.parametrize("kind", ["model", "routine"])
def test_a_run_that_does_not_end_silences_the_server(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    end, beats = threading.Event(), list[float]()
    monkeypatch.setattr(serving_app, "report_progress", lambda **_: beats.append(time.monotonic()))
    monkeypatch.setattr(serving_app, "SEND_INTERVAL_S", 0.01)
    monkeypatch.setattr(base, "MAX_RUN_S", 0.3)
    compute = model.predict
    monkeypatch.setattr(model, "predict", lambda arrays: end.wait(60) and compute(arrays))
    served = model if kind == "model" else Routine("trainer.Predictor", Blocking(end))
    app = PredictApp(served, options=OPTIONS)

    async def check() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            running(app),
            httpx.AsyncClient(transport=transport, base_url="http://server", headers=HEADERS) as client,
        ):
            began_s = time.monotonic()
            call = asyncio.create_task(client.post("/predict", json={"instances": [IMAGE.tolist()]}))
            while (last_s := max(beats, default=began_s)) > time.monotonic() - 1.0:
                assert time.monotonic() - began_s < 60, "it says forever that it answers requests"
                await asyncio.sleep(0.01)
            assert last_s - began_s > 0.2, "it was silent before the run took too long"
            end.set()
            assert (await call).status_code == 200
            while max(beats) == last_s:
                assert time.monotonic() - began_s < 60, "it is silent though it answers again"
                await asyncio.sleep(0.01)

    asyncio.run(check())


NUM_LONG = 64_000


def test_small_requests_do_not_wait_for_a_long_one() -> None:
    scalar = LoadedModel(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]), max_batch_size=64)
    scalar.warm_up()
    long_body = json.dumps({"instances": [[0.25, 0.5]] * NUM_LONG}).encode()
    small = {"instances": [[1.0, 2.0]]}
    app = PredictApp(scalar, options=AppOptions(token=TOKEN, policy=BatchPolicy(max_latency_s=0)))

    async def check() -> tuple[int, int]:
        transport = httpx.ASGITransport(app)
        async with (
            running(app),
            httpx.AsyncClient(transport=transport, base_url="http://server", headers=HEADERS) as client,
        ):
            long = asyncio.create_task(client.post("/predict", content=long_body))
            num_small = 0
            while not long.done():
                assert (await client.post("/predict", json=small)).status_code == 200
                num_small += 1
                await asyncio.sleep(0)  # one turn of the loop, no time
            return num_small, len((await long).json()["predictions"])

    num_small, num_predictions = asyncio.run(check())
    assert num_predictions == NUM_LONG
    assert num_small > NUM_LONG / 64 / 10, "one in ten batches of the long request lets a small one in at least"
