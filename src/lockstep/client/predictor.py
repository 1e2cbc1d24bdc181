"""Requests predictions from one model, with NumPy arrays, for programs that call models."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar, cast, final, overload

import numpy as np

from lockstep.client.addresses import (
    DEFAULT_PROJECT,
    PROJECT_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    ServiceAddress,
    find_address,
)
from lockstep.client.client import Client
from lockstep.client.model_requests import PREDICT_TIMEOUT_S
from lockstep.client.tensors import ONLY_INPUT, join_rows, read_tensors, write_tensors
from lockstep.errors import BodyTooLargeError, InvalidInputError, LockstepError, ModelError
from lockstep.home import Home

MAX_REQUEST_BYTES: Final = 32 * 2**20
"""The maximum size of a request's body that the service accepts, in bytes."""
TIMEOUT_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
_BEGIN, _END = b'{"instances":[', b"]}"

Arrays = np.ndarray | dict[str, np.ndarray]
Answer = TypeVar("Answer")


@final
class Predictor:
    """Requests predictions from one model, over connections that are kept open. Thread-safe.

    For example::

        with Predictor("digits") as digits:
            scores = digits.predict(images)  # shape [n, 28, 28] in, shape [n, 10] out

    A request that the service or the model's servers cannot answer now (status 429, 502, 503 or 504, or no connection)
    is sent again after a pause: a growing one, or the ``Retry-After`` of the response if that is longer.

    Args:
        model: the model's name.
        version: the version's name; None for the model's default version.
        project: the model's project; by default ``LOCKSTEP_PROJECT``, or else ``local``.
        url: the service's URL; by default ``LOCKSTEP_URL``, or else the service that runs on this machine's home.
        token: the key; by default ``LOCKSTEP_TOKEN``, the file that ``LOCKSTEP_TOKEN_FILE`` names, or the home's.
        binary: whether arrays are sent and returned as binary tensors instead of JSON. This is faster, and keeps their
            types: see `predict`. Lists are sent as JSON in any case.
        timeout_s: how long a call of `predict` may take, with all its requests and pauses, in seconds.
        max_request_bytes: the maximum size of a request's body, in bytes. More instances take several requests.
        clock: a monotonic clock, in seconds.
        sleep: pauses for some seconds.

    Raises:
        ConfigError: a URL, key or environment variable is not valid, or one is missing.
        InvalidInputError: an argument is not valid.
        UnavailableError: no service is named, and none runs on the home.
    """

    def __init__(
        self,
        model: str,
        *,
        version: str | None = None,
        project: str | None = None,
        url: str | None = None,
        token: str | None = None,
        binary: bool = False,
        timeout_s: float = TIMEOUT_S,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not timeout_s > 0:
            raise InvalidInputError("timeout_s", received=timeout_s, allowed="more than 0")
        if not 0 < max_request_bytes <= MAX_REQUEST_BYTES:
            raise InvalidInputError(
                "max_request_bytes", received=max_request_bytes, allowed=f"1 to {MAX_REQUEST_BYTES}"
            )
        self._model, self._version = model, version
        self._project = project or os.environ.get(PROJECT_VARIABLE) or DEFAULT_PROJECT
        self._env = _environment(url=url, token=token)
        self._binary = binary
        self._timeout_s, self._max_request_bytes = timeout_s, max_request_bytes
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._address = self._find_address()
        self._client = Client(self._address, project=self._project)
        self._former: list[Client] = []

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for client in (self._client, *self._former):
                client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def predict(self, instances: np.ndarray | Mapping[str, np.ndarray]) -> Arrays: ...
    @overload
    def predict(self, instances: Sequence[Any]) -> list[Any]: ...
    def predict(self, instances: np.ndarray | Mapping[str, np.ndarray] | Sequence[Any]) -> Arrays | list[Any]:
        """Returns the model's predictions, one for each instance, in their order.

        Args:
            instances: an array of shape ``[n, ...]`` for a model with one input; such arrays by input name for a model
                with several inputs; or a list of n instances as the service takes them. In a list, ``bytes`` stand for
                an image file, and are sent as ``{"b64": ...}``.

        Returns:
            For arrays: an array of shape ``[n, ...]``; such arrays by output name for a model with several outputs.
            Their dtype is float64, int64 or bool, because JSON does not tell float32 from float64. With ``binary``, it
            is that of the model's output, and the arrays can be read-only. For a list: the list of predictions as the
            service sends them.

        Raises:
            InvalidInputError: the instances are not valid, or do not fit the model's inputs.
            BodyTooLargeError: a single instance is larger than a request may be.
            ModelError: the model could not be run, or its predictions have different shapes and form no array.
            NotFoundError: there is no such model or version.
            AuthenticationError: the key is not valid.
            PermissionDeniedError: the key does not permit it.
            OverloadedError: the model's servers had too many requests waiting, until the time was over.
            UnavailableError: the service or the model's servers did not respond, until the time was over.
        """
        deadline = self._clock() + self._timeout_s
        if self._binary and isinstance(instances, np.ndarray | Mapping):
            return self._infer(_tensors(instances), deadline=deadline)
        predictions: list[Any] = []
        for body in _bodies(_rows(instances), max_bytes=self._max_request_bytes):
            predictions += self._send(
                partial(Client.predict_encoded, model=self._model, body=body, version=self._version), deadline=deadline
            )
        if isinstance(instances, np.ndarray | Mapping):
            return _arrays(predictions)
        return predictions

    def _infer(self, arrays: Mapping[str, np.ndarray], *, deadline: float) -> Arrays:
        parts: list[dict[str, np.ndarray]] = []
        for body in write_tensors(arrays, max_bytes=self._max_request_bytes):
            ask = partial(Client.infer, model=self._model, body=body, version=self._version)
            parts.append(read_tensors(self._send(ask, deadline=deadline)))
        outputs = join_rows(parts)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _send(self, ask: Callable[..., Answer], *, deadline: float) -> Answer:
        """Sends a request until it is answered, or would be answered only after the deadline.

        Args:
            ask: sends the request with a client and a `timeout_s`, and returns the answer.
            deadline: the deadline, by the clock.
        """
        num_tries = 0
        while True:
            num_tries += 1
            client = self._client
            timeout_s = min(PREDICT_TIMEOUT_S, max(deadline - self._clock(), 0.001))
            try:
                return ask(client, timeout_s=timeout_s)
            except LockstepError as error:
                if error.retry_after_s is None:
                    raise
                pause_s = retry_pause_s(num_tries, retry_after_s=error.retry_after_s, jitter=random.random())  # noqa: S311
                if self._clock() + pause_s >= deadline:
                    error.add_note(f"tried {num_tries} times within timeout_s={self._timeout_s:g}")
                    raise
            self._sleep(pause_s)
            self._find_again()

    def _find_address(self) -> ServiceAddress:
        return find_address(Home.from_env(self._env), env=self._env)

    def _find_again(self) -> None:
        """Finds the home's service again, because another one, with another port, may run there by now."""
        with contextlib.suppress(LockstepError), self._lock:  # while none runs, the old address is tried
            address = self._find_address()
            if address != self._address:
                # Other threads may be using the former client, which is closed with this object.
                self._former.append(self._client)
                self._address, self._client = address, Client(address, project=self._project)


def retry_pause_s(num_tries: int, *, retry_after_s: float, jitter: float) -> float:
    """Returns how long to wait before the next try, in seconds: twice as long after each, and not less than asked for.

    Args:
        num_tries: how often the request was sent, 1 or more.
        retry_after_s: how long the service asks to wait, in seconds.
        jitter: a number from 0 to 1 that keeps many callers from trying again at the same time.
    """
    growing_s = min(_FIRST_PAUSE_S * 2.0 ** min(num_tries - 1, 30), _MAX_PAUSE_S)
    return max(retry_after_s, growing_s) * (1 + jitter / 4)


def _environment(*, url: str | None, token: str | None) -> dict[str, str]:
    env = dict(os.environ)
    if url is not None:
        env[URL_VARIABLE] = url
    if token is not None:
        env.pop(TOKEN_FILE_VARIABLE, None)
        env[TOKEN_VARIABLE] = token
    return env


def _rows(instances: np.ndarray | Mapping[str, np.ndarray] | Sequence[Any]) -> Iterator[Any]:
    """Yields the instances, as values that `_encode` accepts."""
    if isinstance(instances, np.ndarray):
        _check_array(instances, "instances")
        _check_finite(instances, "instances")
        return iter(instances)
    if isinstance(instances, Mapping):
        return _rows_of_inputs(cast("Mapping[str, np.ndarray]", instances))
    if isinstance(instances, str | bytes) or not isinstance(instances, Sequence):
        raise InvalidInputError(
            "instances", received=type(instances).__name__, allowed="an array, arrays by input name, or a list"
        )
    if not instances:
        raise InvalidInputError("instances", received=[], allowed="one instance or more")
    return iter(instances)


def _tensors(instances: np.ndarray | Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns arrays by input name."""
    if isinstance(instances, np.ndarray):
        _check_array(instances, "instances")
        return {ONLY_INPUT: instances}
    _check_inputs(instances)
    return instances


def _rows_of_inputs(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    _check_inputs(arrays)
    for name, array in arrays.items():
        _check_finite(array, f"input {name}")
    return ({name: array[row] for name, array in arrays.items()} for row in range(len(next(iter(arrays.values())))))


def _check_inputs(arrays: Mapping[str, np.ndarray]) -> None:
    if not arrays:
        raise InvalidInputError("instances", received={}, allowed="one array or more, by input name")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InvalidInputError(
                f"input {name}", received=type(array).__name__, allowed="an array of shape [n, ...]"
            )
        _check_array(array, f"input {name}")
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise InvalidInputError("the inputs have different numbers of rows", received=sizes)


def _check_array(array: np.ndarray, what: str) -> None:
    if array.ndim == 0 or len(array) == 0:
        raise InvalidInputError(what, received=list(array.shape), allowed="shape [n, ...] with n of 1 or more")
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{what}: dtype", received=str(array.dtype), allowed="numbers or bool")


def _check_finite(array: np.ndarray, what: str) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        raise InvalidInputError(f"{what}[{row}]: a value is not a finite number", allowed="numbers that JSON has")


def _bodies(rows: Iterator[Any], *, max_bytes: int) -> Iterator[bytes]:
    """Yields the bodies of requests, each with as many instances as the maximum size allows."""
    parts: list[bytes] = []
    size_bytes = len(_BEGIN) + len(_END)
    for index, row in enumerate(rows):
        part = _encode(row, index)
        if len(_BEGIN) + len(part) + len(_END) > max_bytes:
            raise BodyTooLargeError(
                f"instances[{index}] is too large for a request",
                received=f"{len(part)} bytes of JSON",
                allowed=f"requests of {max_bytes} bytes",
            )
        if parts and size_bytes + len(part) + 1 > max_bytes:
            yield _BEGIN + b",".join(parts) + _END
            parts, size_bytes = [], len(_BEGIN) + len(_END)
        parts.append(part)
        size_bytes += len(part) + 1
    yield _BEGIN + b",".join(parts) + _END


def _encode(instance: object, index: int) -> bytes:
    try:
        return json.dumps(instance, default=_plain, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"instances[{index}] cannot be written as JSON: {error}") from None


def _plain(value: object) -> object:
    """Returns a value that JSON does not have as one that it has."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    raise TypeError(f"a {type(value).__name__} is not a number, list, array, bytes or object")


def _arrays(predictions: Sequence[Any]) -> Arrays:
    try:
        if isinstance(predictions[0], dict):
            return {name: np.asarray([row[name] for row in predictions]) for name in predictions[0]}
        return np.asarray(predictions)
    except (ValueError, KeyError, TypeError, IndexError):
        raise ModelError(
            "the predictions have different shapes, and form no array", action="send the instances as a list"
        ) from None
