"""Metrics for Prometheus: jobs, queue, controller and predictions of the service, and what running replicas use now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, final

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from lockstep import __version__
from lockstep.jobs.running.metrics import METRICS
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.requests import Context
from lockstep.service.api.routes import make_router
from lockstep.service.api.telemetry.prediction_metrics import prediction_metrics
from lockstep.service.context import ServiceContext
from lockstep.service.problems import Part
from lockstep.service.store import JobRecord

MAX_REPLICAS: Final = 1000
"""The maximum number of running replicas with metrics, those of the oldest jobs first. Programs' own metrics are not
shown."""

router = make_router()


@router.get(
    "/metrics",
    response_class=Response,  # without a media type of its own, since errors are JSON as on all routes
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@requires_scope(Scope.VIEWER)
def prometheus(context: Context, principal: RequestPrincipal) -> Response:
    """Returns metrics in Prometheus's text format: of the key's project, or of all projects and the service itself."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServiceCollector(context, principal=principal))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@final
class _ServiceCollector(Collector):
    """Reads the service's state at each scrape, so nothing is counted twice, and counts of jobs survive a restart."""

    def __init__(self, context: ServiceContext, *, principal: Principal) -> None:
        self._context = context
        self._principal = principal

    @override
    def collect(self) -> Iterable[Metric]:
        if self._principal.is_for_all_projects:
            yield from self._service()
        yield from self._jobs()
        yield from prediction_metrics(self._context, sees=self._sees)
        yield from _replicas(job for job in self._context.jobs.running() if self._sees(job.project))

    def _sees(self, project: str) -> bool:
        return self._principal.is_for_all_projects or project == self._principal.project

    def _service(self) -> Iterator[Metric]:
        controller = self._context.controller
        build = GaugeMetricFamily("lockstep_build_info", "1, with the version as its label.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        is_engine_healthy = not self._context.problems.has(Part.ENGINE)
        yield GaugeMetricFamily(
            "lockstep_engine_up", "Whether the engine's last response succeeded.", value=float(is_engine_healthy)
        )
        passes = controller.passes
        yield CounterMetricFamily("lockstep_controller_passes", "Passes of the controller.", value=passes.num_passes)
        yield CounterMetricFamily("lockstep_controller_pass_seconds", "Total duration of passes.", value=passes.total_s)
        yield GaugeMetricFamily(
            "lockstep_controller_last_pass_seconds", "Duration of the last pass.", value=passes.last_s
        )
        yield GaugeMetricFamily(
            "lockstep_start_time_seconds", "When the service started, since 1970.", value=self._context.started_time_s
        )

    def _jobs(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("lockstep_jobs", "Jobs by project and state.", labels=["project", "state"])
        num_queued = 0
        for (project, state), number in sorted(self._context.jobs.count_by_state().items()):
            if self._sees(project):
                jobs.add_metric([project, state.value], number)
                num_queued += number if state is JobState.QUEUED else 0
        yield jobs
        yield GaugeMetricFamily("lockstep_queue_length", "Jobs that wait for their turn.", value=num_queued)


def _replicas(running: Iterable[JobRecord]) -> Iterator[Metric]:
    labels = ["project", "job", "replica"]
    gauges = {
        name: GaugeMetricFamily(f"lockstep_replica_{_snake(name)}", f"{metric.what}, {metric.unit}.", labels=labels)
        for name, metric in METRICS.items()
    }
    cpu = CounterMetricFamily(
        "lockstep_replica_cpu_seconds", "Processor time of this start's program and its children.", labels=labels
    )
    num_seen = 0
    for job in running:
        for replica in job.replicas:
            num_seen += 1
            if num_seen <= MAX_REPLICAS:
                status = replica.status
                values = [job.project, job.job_id, status.name]
                cpu.add_metric(values, status.usage.cpu_s)
                _add(gauges, values, status.metrics)
    yield cpu
    yield from gauges.values()
    yield GaugeMetricFamily(
        "lockstep_replicas_left_out",
        f"Running replicas beyond the first {MAX_REPLICAS}, of which nothing is shown.",
        value=max(0, num_seen - MAX_REPLICAS),
    )


def _add(gauges: Mapping[str, GaugeMetricFamily], labels: list[str], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if name in gauges:
            gauges[name].add_metric(labels, value)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter.group().lower()}", name)
