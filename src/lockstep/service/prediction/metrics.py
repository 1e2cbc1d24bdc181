"""Counts the requests for predictions that this service has answered, by model and version."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Final, Self, final

from lockstep.errors import LockstepError, RateLimitError
from lockstep.service.store import DATABASE_FAULTS

LATENCY_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper limits of the buckets of the latency, in seconds. A last one has no limit."""
MAX_VERSIONS: Final = 2000
"""The maximum number of versions that are counted apart. Requests for further ones are counted without their names."""
MINUTE_S: Final = 60.0
MAX_MINUTES: Final = 120
"""How many minutes with requests are kept of each version."""
OK: Final = 200
HTTP_ERROR: Final = 400
HTTP_CLIENT_GONE: Final = 499


@final
class ErrorKind(StrEnum):
    """Why a request had no predictions, as far as the HTTP status of its response tells."""

    INVALID_REQUEST = "invalid_request"
    """The instances do not fit the model, or the model failed on them."""
    NOT_FOUND = "not_found"
    """There is no such model or version."""
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    """The rate of the key, or of the project, was exceeded."""
    OVERLOADED = "overloaded"
    """Too many requests waited."""
    UNAVAILABLE = "unavailable"
    """No prediction server could be reached, or it ended before it answered."""
    DEADLINE = "deadline"
    """The time that the client waits was over."""
    OTHER = "other"


_KINDS: Final = {
    400: ErrorKind.INVALID_REQUEST,
    404: ErrorKind.NOT_FOUND,
    413: ErrorKind.TOO_LARGE,
    415: ErrorKind.INVALID_REQUEST,
    422: ErrorKind.INVALID_REQUEST,
    429: ErrorKind.OVERLOADED,
    503: ErrorKind.UNAVAILABLE,
    504: ErrorKind.DEADLINE,
}


@final
@dataclass(frozen=True, kw_only=True)
class VersionName:
    """Whose requests are counted. Model and version are "" if they are not known to exist."""

    project: str
    model: str = ""
    version: str = ""


@final
@dataclass(kw_only=True, slots=True)
class Minute:
    """The requests of one version that were answered within a minute.

    Attributes:
        start_s: the start of the minute, in seconds since 1970 UTC.
        num_requests: the number of responses.
        num_errors: the number of those without predictions.
        latency_s: the sum of their latencies, in seconds.
    """

    start_s: float
    num_requests: int = 0
    num_errors: int = 0
    latency_s: float = 0.0


@final
@dataclass(kw_only=True)
class RequestCounts:
    """The counts of one version.

    Attributes:
        statuses: the number of responses by the class of their HTTP status, such as ``2xx``.
        errors: the number of responses without predictions, by kind.
        latencies: the number of responses in each bucket of `LATENCY_BUCKETS_S`, and in the one without a limit.
        latency_s: the sum of all latencies, in seconds.
        minutes: the last minutes with requests, the oldest first.
    """

    statuses: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[ErrorKind] = field(default_factory=Counter[ErrorKind])
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    latency_s: float = 0.0
    minutes: deque[Minute] = field(default_factory=lambda: deque[Minute](maxlen=MAX_MINUTES))

    def copy(self) -> RequestCounts:
        """Returns a copy, without the minutes."""
        return RequestCounts(
            statuses=self.statuses.copy(),
            errors=self.errors.copy(),
            latencies=list(self.latencies),
            latency_s=self.latency_s,
        )


@final
class PredictionMetrics:
    """Counts requests from their arrival at the service to their response. Thread-safe.

    Names of models and versions are only kept if they exist, so that requests for others do not use up memory.

    Args:
        clock: a monotonic clock, in seconds.
        wall_clock: a clock in seconds since 1970 UTC.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._counts: dict[VersionName, RequestCounts] = {}
        self._models: set[tuple[str, str]] = set()

    def observe(self, *, project: str, model: str, since_s: float) -> Observation:
        """Returns an observation of one request, a context manager around its handling.

        Args:
            project: the project.
            model: the model that the request names, which may not exist.
            since_s: when it arrived, by `clock`.
        """
        return Observation(self, project=project, model=model, since_s=since_s)

    def count(
        self, *, project: str, model: str, version: str, status: int, latency_s: float, kind: ErrorKind | None
    ) -> None:
        """Counts one response.

        Args:
            project: the project.
            model: the model that the request names, which may not exist.
            version: the version that answers; "" if none was found.
            status: the HTTP status of the response.
            latency_s: how long the request took, in seconds.
            kind: why it has no predictions; None if it has some.
        """
        with self._lock:
            counts = self._find(project, model, version)
            counts.statuses[f"{status // 100}xx"] += 1
            counts.latencies[bisect_left(LATENCY_BUCKETS_S, latency_s)] += 1
            counts.latency_s += latency_s
            if kind is not None:
                counts.errors[kind] += 1
            minute = _minute_of(counts, now_s=self._wall_clock())
            minute.num_requests += 1
            minute.num_errors += kind is not None
            minute.latency_s += latency_s

    def read(self) -> dict[VersionName, RequestCounts]:
        """Returns a copy of all counts."""
        with self._lock:
            return {name: counts.copy() for name, counts in self._counts.items()}

    def minutes(self, name: VersionName) -> list[Minute]:
        """Returns copies of the last minutes in which a version was requested, the oldest first."""
        with self._lock:
            found = self._counts.get(name)
            return [] if found is None else [replace(minute) for minute in found.minutes]

    def _find(self, project: str, model: str, version: str) -> RequestCounts:
        if version:
            self._models.add((project, model))
        elif (project, model) not in self._models:
            model = ""
        name = VersionName(project=project, model=model, version=version)
        if name not in self._counts and len(self._counts) >= MAX_VERSIONS:
            name = VersionName(project="")
        return self._counts.setdefault(name, RequestCounts())


@final
class Observation:
    """Observes one request while the block runs, and counts it at the end.

    Attributes:
        version: the version that answers; "" until one was found.
        status: the HTTP status of the response; that of an exception follows from its class.
        latency_s: how long it took, in seconds; known after the block.
    """

    def __init__(self, metrics: PredictionMetrics, *, project: str, model: str, since_s: float) -> None:
        self._metrics = metrics
        self._project = project
        self._model = model
        self._since_s = since_s
        self.version = ""
        self.status = OK
        self.latency_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.status = _status(error)
        self.latency_s = self._metrics.clock() - self._since_s
        self._metrics.count(
            project=self._project,
            model=self._model,
            version=self.version,
            status=self.status,
            latency_s=self.latency_s,
            kind=_kind(self.status, error),
        )


def _minute_of(counts: RequestCounts, *, now_s: float) -> Minute:
    start_s = now_s // MINUTE_S * MINUTE_S
    if not counts.minutes or counts.minutes[-1].start_s < start_s:  # a clock that was set back adds to the last one
        counts.minutes.append(Minute(start_s=start_s))
    return counts.minutes[-1]


def _status(error: BaseException) -> int:
    if isinstance(error, LockstepError):
        return error.http_status
    if isinstance(error, asyncio.CancelledError):
        return HTTP_CLIENT_GONE
    return 503 if isinstance(error, DATABASE_FAULTS) else 500


def _kind(status: int, error: BaseException | None) -> ErrorKind | None:
    if status < HTTP_ERROR:
        return None
    return ErrorKind.RATE_LIMITED if isinstance(error, RateLimitError) else _KINDS.get(status, ErrorKind.OTHER)
