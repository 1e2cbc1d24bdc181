"""Reads jobs' metrics from the bucket, as series of bounded length in pages of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.jobs.running.metrics import (
    METRICS,
    PROGRAM_PREFIX,
    SAMPLE_INTERVAL_S,
    Sample,
    Series,
    decode_sample,
    series_of,
)
from lockstep.runner.series import key_time_s
from lockstep.service.control.job_inputs import order_of
from lockstep.service.control.job_urls import metrics_url
from lockstep.service.store import JobRecord
from lockstep.storage import QUICK_POLICY, AbstractBucket, open_bucket

MAX_REPLICAS: Final = 20
MAX_SEGMENTS: Final = 400
MAX_PAGE_POINTS: Final = 50_000
"""A page ends with the replica that reaches `MAX_SEGMENTS` or `MAX_PAGE_POINTS`, or after `MAX_REPLICAS` replicas."""


@final
@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    """A query of a job's series.

    Attributes:
        names: the names of the metrics; all metrics if empty.
        replica: the name of the replica; all replicas if None.
        attempt: the number of the attempt; the latest if None.
        since_s: the start, in seconds since 1970 UTC; the first segment of the page's replicas if None.
        until_s: the end, in seconds since 1970 UTC; now if None.
        max_points: the maximum number of points of a series.
    """

    names: tuple[str, ...] = ()
    replica: str | None = None
    attempt: int | None = None
    since_s: float | None = None
    until_s: float | None = None
    max_points: int = 120


@final
@dataclass(frozen=True, kw_only=True)
class SeriesPage:
    """A page with the series of some replicas of a job.

    Attributes:
        series: the series, each with the name of its replica, replica by replica.
        attempt: the number of the attempt.
        interval_s: the length of the interval that each point is a mean of.
        next: the number of the replica that the next page begins with; None if this is the last page.
    """

    series: tuple[tuple[str, Series], ...]
    attempt: int
    interval_s: float
    next: int | None = None


def read_series(job: JobRecord, *, query: SeriesQuery, first: int, now_s: float) -> SeriesPage:
    """Returns a page of series, replica by replica.

    Args:
        job: the job.
        query: the query.
        first: the number of the replica that the page begins with.
        now_s: the current time, in seconds since 1970 UTC.

    Raises:
        InvalidInputError: If the job has no such replica or attempt, or if there is no such metric.
        StorageError: If the bucket cannot be read.
        CorruptDataError: If the objects hold no samples.
    """
    for name in query.names:
        if name not in METRICS and not name.startswith(PROGRAM_PREFIX):
            raise InvalidInputError("metric", received=name, allowed=[*METRICS, f"{PROGRAM_PREFIX}NAME"])
    attempt = job.attempt if query.attempt is None else query.attempt
    if not 0 <= attempt <= job.attempt:
        raise InvalidInputError("attempt", received=attempt, allowed=f"0 to {job.attempt}")
    replicas = _replicas(job, query.replica)
    chosen = replicas[first : first + MAX_REPLICAS]
    found = {name: _segments(job, replica=name, attempt=attempt) for name in chosen}
    began_s = min((keys[0][0] for _, keys in found.values() if keys), default=job.create_time_s)
    since_s = began_s if query.since_s is None else max(query.since_s, began_s)
    until_s = min(now_s if query.until_s is None else query.until_s, (job.end_time_s or now_s) + SAMPLE_INTERVAL_S)
    interval_s = max(SAMPLE_INTERVAL_S, (until_s - since_s) / query.max_points)
    shown: list[tuple[str, Series]] = []
    num_segments = num_points = num_replicas = 0
    for name, (bucket, keys) in found.items():
        if num_segments >= MAX_SEGMENTS or num_points >= MAX_PAGE_POINTS:
            break
        wanted = [
            key
            for number, (_, key) in enumerate(keys)
            if keys[number][0] < until_s and (number + 1 == len(keys) or keys[number + 1][0] > since_s)
        ]
        num_segments += len(wanted)
        num_replicas += 1
        samples = _samples(bucket, wanted)
        for series in series_of(samples, names=query.names, since_s=since_s, until_s=until_s, interval_s=interval_s):
            num_points += len(series.points)
            shown.append((name, series))
    following = first + num_replicas
    return SeriesPage(
        series=tuple(shown),
        attempt=attempt,
        interval_s=interval_s,
        next=following if following < len(replicas) else None,
    )


def _replicas(job: JobRecord, wanted: str | None) -> Sequence[str]:
    order = order_of(job)
    names = [] if order is None else [replica.name for replica in order.replicas]
    if wanted is None:
        return names
    if names and wanted not in names:
        raise InvalidInputError("replica", received=wanted, allowed=names)
    return [wanted] if names else []


def _segments(job: JobRecord, *, replica: str, attempt: int) -> tuple[AbstractBucket, list[tuple[float, str]]]:
    """Returns the bucket of a replica's metrics, and its segments as (start time, key), in order of time."""
    bucket = open_bucket(metrics_url(job, replica=replica, attempt=attempt), policy=QUICK_POLICY)
    timed = [(key_time_s(item.key), item.key) for item in bucket.list()]
    return bucket, sorted((time_s, key) for time_s, key in timed if time_s is not None)


def _samples(bucket: AbstractBucket, keys: Sequence[str]) -> Iterator[Sample]:
    for key in keys:
        try:
            data = bucket.read(key)
        except MissingInputError:  # it was deleted after it was listed
            continue
        for line in data.splitlines():
            sample = decode_sample(line)
            if sample is None:
                raise CorruptDataError(f"{bucket.url_of(key)} holds no samples of metrics")
            yield sample
