"""Metrics of predictions for Prometheus: what this service has answered, and what prediction servers report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from lockstep.jobs.running.orders import BUSY_SECONDS
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.prediction.metrics import LATENCY_BUCKETS_S, RequestCounts, VersionName
from lockstep.service.prediction.servers import server_name
from lockstep.service.store import JobRecord, VersionRecord, VersionState
from lockstep.serving.batch_counts import read_buckets

MAX_SERVERS: Final = 1000
"""The maximum number of prediction servers with metrics of their own, the oldest first."""

_VERSION: Final = ("project", "model", "version")
_SERVER: Final = (*_VERSION, "server")
_NO_LIMIT: Final = "+Inf"

_GAUGES: Final = {
    "open": ("open_requests", "Requests that a prediction server has received and not answered."),
    "waiting": ("queue_length", "Requests that wait for the next run of the model."),
}
"""Metrics of a server that go up and down, by the names of its heartbeats."""
_COUNTERS: Final = {
    "requests": ("requests", "Requests that a prediction server has taken for a run of its model."),
    BUSY_SECONDS: ("busy_seconds", "For how long a prediction server had at least one request."),
}
"""Metrics of a server that only grow, until it is launched again."""


def prediction_metrics(context: ServiceContext, *, sees: Callable[[str], bool]) -> Iterator[Metric]:
    """Yields the metrics of predictions.

    Args:
        context: the parts of the service.
        sees: returns whether the key of the request may see a project.
    """
    counts = {name: found for name, found in context.prediction_metrics.read().items() if sees(name.project)}
    yield from _requests(counts)
    yield from _request_logs(
        {name: found for name, found in context.request_logs.counts().items() if sees(name.project)}
    )
    versions = [version for version in context.models.list_versions() if sees(version.project)]
    servers = [server for server in context.jobs.servers() if sees(server.project)]
    yield from _numbers_of_servers(versions, servers, held=context.waking.held())
    yield from _servers({version.uid: version for version in versions}, servers)


def _requests(counts: Mapping[VersionName, RequestCounts]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "lockstep_prediction_requests",
        "Responses of this service to requests for predictions, by the class of their HTTP status.",
        labels=[*_VERSION, "code"],
    )
    errors = CounterMetricFamily(
        "lockstep_prediction_errors", "Those without predictions, by kind.", labels=[*_VERSION, "kind"]
    )
    latency = HistogramMetricFamily(
        "lockstep_prediction_request_seconds",
        "Time from the arrival of a request to its response, as far as this service takes part.",
        labels=_VERSION,
    )
    limits = [*(str(limit) for limit in LATENCY_BUCKETS_S), _NO_LIMIT]
    for name, found in counts.items():
        labels = [name.project, name.model, name.version]
        for code, number in sorted(found.statuses.items()):
            requests.add_metric([*labels, code], number)
        for kind, number in sorted(found.errors.items()):
            errors.add_metric([*labels, kind.value], number)
        buckets = list(zip(limits, map(float, accumulate(found.latencies)), strict=True))
        latency.add_metric(labels, buckets=buckets, sum_value=found.latency_s)
    yield from (requests, errors, latency)


def _request_logs(counts: Mapping[VersionName, tuple[int, int]]) -> Iterator[Metric]:
    written = CounterMetricFamily(
        "lockstep_prediction_logged_requests", "Sampled requests that were written to a bucket.", labels=_VERSION
    )
    dropped = CounterMetricFamily(
        "lockstep_prediction_unlogged_requests", "Sampled requests that were left out.", labels=_VERSION
    )
    for name, (num_written, num_dropped) in counts.items():
        labels = [name.project, name.model, name.version]
        written.add_metric(labels, num_written)
        dropped.add_metric(labels, num_dropped)
    yield from (written, dropped)


def _numbers_of_servers(
    versions: Sequence[VersionRecord], servers: Sequence[JobRecord], *, held: Mapping[str, int]
) -> Iterator[Metric]:
    wanted = GaugeMetricFamily(
        "lockstep_prediction_servers_wanted", "Prediction servers that a version should have now.", labels=_VERSION
    )
    ready = GaugeMetricFamily(
        "lockstep_prediction_servers_ready", "Those that are ready, without those that drain.", labels=_VERSION
    )
    waiting = GaugeMetricFamily(
        "lockstep_prediction_held_requests",
        "Requests that this service holds until a prediction server is ready.",
        labels=_VERSION,
    )
    found = [server.version_uid for server in servers if is_ready(server) and server.drain_time_s is None]
    for version in versions:
        labels = [version.project, version.model, version.name]
        is_served = version.state in (VersionState.READY, VersionState.CREATING)
        wanted.add_metric(labels, version.num_servers if is_served else 0)
        ready.add_metric(labels, found.count(version.uid))
        waiting.add_metric(labels, held.get(version.uid, 0))
    yield from (wanted, ready, waiting)


def _servers(versions: Mapping[str, VersionRecord], servers: Sequence[JobRecord]) -> Iterator[Metric]:
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for kind, described in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for key, (name, what) in described.items():
            families[key] = kind(f"lockstep_prediction_server_{name}", what, labels=_SERVER)
    sizes = HistogramMetricFamily(
        "lockstep_prediction_server_batch_size", "Instances in a run of the model.", labels=_SERVER
    )
    for server in servers[:MAX_SERVERS]:
        version = versions.get(str(server.version_uid))
        progress = server.replicas[0].status.progress if server.replicas else None
        if version is None or progress is None or not is_ready(server):
            continue
        labels = [version.project, version.model, version.name, server_name(server)]
        for key, family in families.items():
            if key in progress.metrics:
                family.add_metric(labels, progress.metrics[key])
        batches = read_buckets(progress.metrics)
        if batches is not None:
            sizes.add_metric(labels, *batches)
    yield from (*families.values(), sizes)
