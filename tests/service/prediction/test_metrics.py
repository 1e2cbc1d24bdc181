"""Counts of requests for predictions."""

from __future__ import annotations

import pytest

from lockstep.errors import BodyTooLargeError, NotFoundError, RateLimitError, UnavailableError
from lockstep.service.prediction import metrics as module
from lockstep.service.prediction.metrics import LATENCY_BUCKETS_S, ErrorKind, PredictionMetrics, VersionName

V1 = VersionName(project="p", model="m", version="v1")


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> PredictionMetrics:
    return PredictionMetrics(clock=clock)


def _observe(metrics: PredictionMetrics, *, took_s: float, status: int = 200, version: str = "v1") -> None:
    clock = metrics.clock
    assert isinstance(clock, Clock)
    with metrics.observe(project="p", model="m", since_s=clock.now_s) as seen:
        clock.now_s += took_s
        seen.version, seen.status = version, status


def test_requests_are_counted_by_status_and_latency(metrics: PredictionMetrics) -> None:
    for took_s, status in ((0.001, 200), (0.0011, 200), (0.3, 400), (100.0, 503)):
        _observe(metrics, took_s=took_s, status=status)
    counts = metrics.read()[V1]
    assert counts.statuses == {"2xx": 2, "4xx": 1, "5xx": 1}
    assert counts.errors == {ErrorKind.INVALID_REQUEST: 1, ErrorKind.UNAVAILABLE: 1}
    assert counts.latency_s == pytest.approx(100.3021)
    filled = {
        limit: number for limit, number in zip([*LATENCY_BUCKETS_S, None], counts.latencies, strict=True) if number
    }
    assert filled == {0.001: 1, 0.0025: 1, 0.5: 1, None: 1}, "a limit belongs to its bucket, as in Prometheus"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RateLimitError("x"), "4xx", ErrorKind.RATE_LIMITED),
        (UnavailableError("x"), "5xx", ErrorKind.UNAVAILABLE),
        (BodyTooLargeError("x"), "4xx", ErrorKind.TOO_LARGE),
        (ValueError("x"), "5xx", ErrorKind.OTHER),
    ],
)
def test_an_error_is_counted_and_goes_on(
    metrics: PredictionMetrics, error: Exception, status: str, kind: ErrorKind
) -> None:
    seen = metrics.observe(project="p", model="m", since_s=0.0)
    seen.version = "v1"
    with pytest.raises(type(error)), seen:
        raise error
    counts = metrics.read()[V1]
    assert (counts.statuses, counts.errors) == ({status: 1}, {kind: 1})


def test_names_that_may_not_exist_are_not_kept(metrics: PredictionMetrics) -> None:
    for number in range(100):
        with pytest.raises(NotFoundError), metrics.observe(project="p", model=f"m{number}", since_s=0.0):
            raise NotFoundError("x")
    (name,) = metrics.read()
    assert name == VersionName(project="p")
    _observe(metrics, took_s=0.0)
    with pytest.raises(RateLimitError), metrics.observe(project="p", model="m", since_s=0.0):
        raise RateLimitError("x")
    assert metrics.read()[VersionName(project="p", model="m")].errors == {ErrorKind.RATE_LIMITED: 1}


def test_there_are_counts_of_so_many_versions_and_no_more(
    metrics: PredictionMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 2)
    for version in ("v1", "v2", "v3", "v4", "v1"):
        _observe(metrics, took_s=0.0, version=version)
    numbers = {name.version: counts.statuses["2xx"] for name, counts in metrics.read().items()}
    assert numbers == {"v1": 2, "v2": 1, "": 2}
