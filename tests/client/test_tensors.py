"""Arrays as binary tensors: written by the client, read by a server, and back."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lockstep.client import Predictor
from lockstep.client.tensors import read_tensors
from lockstep.errors import BodyTooLargeError, InvalidInputError, NotFoundError, UnavailableError
from lockstep.serving.instances import InputSpec
from lockstep.serving.protocols.inference import read_question
from lockstep.serving.protocols.inference_paths import InferencePath, Verb
from lockstep.tensors import HEADER_LENGTH, BinaryBody

PATH = InferencePath(verb=Verb.INFER, model="m")


class Service:
    """A server whose model returns its inputs, by the names "of_" and the input's name.

    Attributes:
        specs: the inputs of the model.
        failures: the statuses of the next responses.
        requests: the path and the size of the body of each request.
    """

    def __init__(self) -> None:
        self.specs = [InputSpec(name="x", shape=(None,), dtype="float32")]
        self.failures: list[int] = []
        self.requests: list[tuple[str, int]] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                service.requests.append((self.path, len(body)))
                status = service.failures.pop(0) if service.failures else 200
                content, headers = b'{"error": "busy"}', {}
                if status == 200:
                    made = service.predict(body, self.headers[HEADER_LENGTH])
                    content, headers = made.body, dict(made.headers)
                self.send_response(status)
                for name, value in {**headers, b"content-length": b"%d" % len(content)}.items():
                    self.send_header(name.decode(), value.decode())
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def predict(self, body: bytes, header: str) -> Any:
        names = [f"of_{spec.name}" for spec in self.specs]
        asked = read_question(body, header_length=header.encode(), path=PATH, inputs=self.specs, output_names=names)
        return asked.write({f"of_{name}": array for name, array in asked.arrays.items()})

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


def _predictor(service: Service, **options: Any) -> Predictor:
    return Predictor("m", url=service.url, token="t", binary=True, sleep=lambda _s: None, **options)


def test_an_array_comes_back_in_the_models_own_type(service: Service) -> None:
    rows = np.array([[1.5, np.nan], [np.inf, -2]], "float32")
    with _predictor(service, project="vision", version="v2") as model:
        found = model.predict(rows)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, rows)
        np.testing.assert_array_equal(model.predict(np.array([[1], [2]], ">i8")), [[1], [2]])
        np.testing.assert_array_equal(model.predict(rows.T[:1]), rows.T[:1])
    assert service.requests[0][0] == "/v1/projects/vision/v2/models/m/versions/v2/infer"


def test_several_inputs_and_outputs_have_names(service: Service) -> None:
    service.specs = [InputSpec(name="a", shape=(), dtype="bool"), InputSpec(name="b", shape=(2,), dtype="uint8")]
    arrays = {"b": np.array([[1, 2], [3, 4]], "uint8"), "a": np.array([True, False])}
    with _predictor(service) as model:
        found = model.predict(arrays)
    assert isinstance(found, dict)
    assert list(found) == ["of_a", "of_b"]
    for name, array in arrays.items():
        assert found[f"of_{name}"].dtype == array.dtype
        np.testing.assert_array_equal(found[f"of_{name}"], array)


def test_a_long_array_takes_several_requests_within_the_limit_and_keeps_its_order(service: Service) -> None:
    rows = np.random.default_rng(3).normal(size=(1000, 7)).astype("float32")
    with _predictor(service, max_request_bytes=2000) as model:
        np.testing.assert_array_equal(model.predict(rows), rows)
    sizes = [size for _, size in service.requests]
    assert len(sizes) > 10
    assert max(sizes) <= 2000
    assert min(sizes[:-1]) > 2000 - 2 * 28, "each but the last is as full as it can be, but for a digit"


def test_a_row_that_no_request_can_hold_is_refused(service: Service) -> None:
    with _predictor(service, max_request_bytes=1000) as model, pytest.raises(BodyTooLargeError, match="2000 bytes"):
        model.predict(np.zeros((2, 500), "float32"))
    assert service.requests == []


def test_a_busy_server_is_asked_again_and_other_errors_are_raised(service: Service) -> None:
    rows = np.ones((1, 2), "float32")
    with _predictor(service) as model:
        service.failures = [503, 429]
        np.testing.assert_array_equal(model.predict(rows), rows)
        assert len(service.requests) == 3
        service.failures = [404]
        with pytest.raises(NotFoundError, match="busy"):
            model.predict(rows)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        (np.zeros((0, 2)), r"received \[0, 2\]"),
        (np.zeros((1, 2), "longdouble"), "instances: dtype; received 'float128'|'longdouble'; allowed: bool, uint8"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "different numbers of rows"),
        ({}, "one array or more"),
    ],
)
def test_what_is_no_array_of_instances_is_refused(service: Service, instances: Any, message: str) -> None:
    with _predictor(service) as model, pytest.raises(InvalidInputError, match=message):
        model.predict(instances)
    assert service.requests == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP9", "shape": [1], "parameters": {"binary_data_size": 4}}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [-1], "parameters": {"binary_data_size": -4}}]}',
    ],
)
def test_a_response_of_another_form_is_said(content: bytes) -> None:
    with pytest.raises(UnavailableError, match="the response has no binary tensors"):
        read_tensors(BinaryBody(content=content, header_length=len(content)))
