"""The client of one model, against servers that answer, fail, move and take their time."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest

from lockstep.client import Predictor
from lockstep.client.predictor import retry_pause_s
from lockstep.errors import (
    BodyTooLargeError,
    InvalidInputError,
    LockstepError,
    ModelError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)

Answer = Callable[[list[Any]], Any]
Failure = tuple[int, dict[str, str], Any]


class Service:
    """A server that answers predictions, after the failures that a test gives it.

    Attributes:
        answer: returns the predictions for instances.
        failures: the status, headers and error of the next responses.
        requests: the path, size of the body and instances of each request that was received.
        connections: the client's address of each request.
    """

    def __init__(self) -> None:
        self.answer: Answer = lambda instances: instances
        self.failures: list[Failure] = []
        self.requests: list[tuple[str, int, list[Any]]] = []
        self.connections: list[Any] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                instances = json.loads(body)["instances"]
                service.requests.append((self.path, len(body), instances))
                service.connections.append(self.client_address)
                status, headers, error = service.failures.pop(0) if service.failures else (200, {}, None)
                document = {"predictions": service.answer(instances)} if status == 200 else {"error": error}
                content = json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def _predictor(service: Service, clock: Clock | None = None, **options: Any) -> Predictor:
    clock = clock or Clock()
    return Predictor("m", url=service.url, token="t", clock=clock, sleep=clock.sleep, **options)


BUSY: Failure = (503, {}, {"message": "no server is ready", "details": [{"reason": "UNAVAILABLE"}]})


def test_arrays_come_back_as_arrays_and_lists_as_lists(service: Service) -> None:
    service.answer = lambda instances: [[sum(row), len(row)] for row in instances]
    with _predictor(service, project="vision", version="v2") as model:
        found = model.predict(np.arange(6, dtype="float32").reshape(3, 2))
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, [[1, 2], [5, 2], [9, 2]])
        assert model.predict([[1, 2], np.float32([3, 4])]) == [[3, 2], [7.0, 2]]
    assert service.requests[0][0] == "/v1/projects/vision/models/m/versions/v2:predict"
    assert len(set(service.connections)) == 1, "the connection is kept open"


def test_arrays_by_input_name_are_sent_as_objects_and_outputs_come_back_by_name(service: Service) -> None:
    service.answer = lambda instances: [{"sum": i["a"][0] + i["b"], "same": i["a"]} for i in instances]
    with _predictor(service) as model:
        found = model.predict({"a": np.array([[1.5], [2.5]]), "b": np.array([1, 2], "uint8")})
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found["sum"], [2.5, 4.5])
    assert found["same"].shape == (2, 1)
    assert service.requests[0][2] == [{"a": [1.5], "b": 1}, {"a": [2.5], "b": 2}]


def test_bytes_are_sent_as_base64(service: Service) -> None:
    with _predictor(service) as model:
        assert model.predict([b"\x01", {"image": b"\x02"}]) == [{"b64": "AQ=="}, {"image": {"b64": "Ag=="}}]


def test_a_long_array_takes_several_requests_within_the_limit_and_keeps_its_order(service: Service) -> None:
    rows = np.random.default_rng(3).normal(size=(200, 7))
    with _predictor(service, max_request_bytes=2000) as model:
        np.testing.assert_array_equal(model.predict(rows), rows)
    sizes = [size for _, size, _ in service.requests]
    assert len(sizes) > 10
    assert max(sizes) <= 2000
    assert min(sizes[:-1]) > 2000 - 200, "each but the last is as full as it can be"


def test_one_instance_that_no_request_can_hold_is_refused(service: Service) -> None:
    with _predictor(service, max_request_bytes=100) as model, pytest.raises(BodyTooLargeError, match=r"instances\[1\]"):
        model.predict([[1], [2] * 100])
    assert service.requests == []


@pytest.mark.parametrize(
    "failure",
    [
        BUSY,
        (429, {}, "too many requests are waiting"),
        (502, {}, None),
        (504, {}, None),
    ],
    ids=lambda failure: str(failure[0]),
)
def test_what_may_succeed_later_is_sent_again(service: Service, failure: Failure) -> None:
    service.failures = [failure, failure]
    clock = Clock()
    with _predictor(service, clock) as model:
        assert model.predict([[1]]) == [[1]]
    assert len(service.requests) == 3
    assert 0.1 <= clock.pauses[0] <= 0.125
    assert 0.2 <= clock.pauses[1] <= 0.25


def test_the_pause_that_the_service_asks_for_is_kept(service: Service) -> None:
    service.failures = [(503, {"retry-after": "7"}, "busy"), (429, {"retry-after": formatdate(4e9)}, "busy")]
    clock = Clock()
    with _predictor(service, clock, timeout_s=30) as model, pytest.raises(OverloadedError, match="busy") as raised:
        model.predict([[1]])
    assert len(clock.pauses) == 1, "nobody waits for a pause that ends after the deadline"
    assert 7 <= clock.pauses[0] <= 8.75
    assert raised.value.__notes__ == ["tried 2 times within timeout_s=30"]


def test_the_last_error_is_raised_when_the_time_is_over(service: Service) -> None:
    service.failures = [BUSY] * 1000
    clock = Clock()
    with _predictor(service, clock, timeout_s=20) as model, pytest.raises(UnavailableError, match="no server is ready"):
        model.predict([[1]])
    assert 13 < clock.now_s <= 20
    assert len(service.requests) == len(clock.pauses) + 1


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ((404, {}, {"message": "there is no model m", "details": [{"reason": "NOT_FOUND"}]}), NotFoundError),
        ((400, {}, "instances[0]: shape"), InvalidInputError),
        ((500, {"retry-after": "1"}, None), UnavailableError),
    ],
)
def test_what_would_fail_again_is_raised_at_once(service: Service, failure: Failure, kind: type[LockstepError]) -> None:
    service.failures = [failure]
    clock = Clock()
    with _predictor(service, clock) as model, pytest.raises(kind):
        model.predict([[1]])
    assert (len(service.requests), clock.pauses) == (1, [])


def test_a_service_that_is_started_on_another_port_is_found(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    former = Service()
    clock = Clock()
    monkeypatch.setenv("LOCKSTEP_URL", former.url)
    monkeypatch.setenv("LOCKSTEP_TOKEN", "t")
    with Predictor("m", clock=clock, sleep=clock.sleep) as model:
        assert model.predict([1]) == [1]
        former.failures = [BUSY] * 100
        model._env["LOCKSTEP_URL"] = service.url  # as the home's file says it after a restart
        assert model.predict([2]) == [2]
    former.close()
    assert (len(former.requests), len(service.requests)) == (2, 1)


def test_threads_share_one_predictor(service: Service) -> None:
    with _predictor(service) as model, ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda number: model.predict([number]), range(64)))
    assert found == [[number] for number in range(64)]
    assert len(set(service.connections)) <= 8


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        (np.array(1.0), r"shape \[n, \.\.\.\]"),
        (np.zeros((0, 2)), r"received \[0, 2\]"),
        (np.array(["a"]), "dtype; received '<U1'"),
        (np.array([[1.0], [np.nan]]), r"instances\[1\]: a value is not a finite number"),
        ({}, "one array or more"),
        ({"a": [1]}, "input a; received 'list'"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "different numbers of rows"),
        ([], "one instance or more"),
        ("text", "received 'str'"),
        ([float("inf")], r"instances\[0\] cannot be written as JSON"),
        ([{1, 2}], "a set is not a number"),
    ],
)
def test_what_are_no_instances_is_refused(service: Service, instances: Any, message: str) -> None:
    with _predictor(service) as model, pytest.raises(InvalidInputError, match=message):
        model.predict(instances)
    assert service.requests == []


def test_predictions_that_form_no_array_are_said(service: Service) -> None:
    service.answer = lambda instances: [[0.0] * (1 + index) for index in range(len(instances))]
    with _predictor(service) as model:
        with pytest.raises(ModelError, match="send the instances as a list"):
            model.predict(np.zeros((2, 1)))
        assert model.predict([[0], [0]]) == [[0.0], [0.0, 0.0]]


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"max_request_bytes": 0}, {"max_request_bytes": 2**26}])
def test_options_out_of_range_are_refused(service: Service, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        _predictor(service, **options)


def test_pauses_grow_to_a_limit_and_are_never_shorter_than_asked_for() -> None:
    assert [retry_pause_s(tries, retry_after_s=0, jitter=0) for tries in (1, 2, 4, 7, 10_000)] == [0.1, 0.2, 0.8, 5, 5]
    assert retry_pause_s(1, retry_after_s=9, jitter=1) == 11.25
