"""Lockstep's own routes that watch a version: its prediction servers, and the requests that it has answered."""

from __future__ import annotations

from typing import Final

from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import ServerForm, ServerListForm, VersionRequestsForm
from lockstep.service.api.requests import Context, Name, Project
from lockstep.service.api.resources import describe_waiting, timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.prediction.metrics import MINUTE_S, VersionName
from lockstep.service.prediction.servers import server_name
from lockstep.service.store import JobRecord

MAX_SERVERS: Final = 100
"""The maximum number of prediction servers in a response, the oldest first."""

router = make_router()


@router.get("/models/{model}/versions/{version}/servers")
@requires_scope(Scope.VIEWER)
def list_servers(project: Project, model: Name, version: Name, context: Context) -> ServerListForm:
    """Returns the prediction servers of a version that are not over, the oldest first."""
    record = context.models.get_version(project=project, model=model, name=version)
    servers = context.jobs.servers(version_uid=record.uid)
    return {
        "servers": [_server(server, context) for server in servers[:MAX_SERVERS]],
        "numServers": len(servers),
    }


@router.get("/models/{model}/versions/{version}/requests")
@requires_scope(Scope.VIEWER)
def version_requests(project: Project, model: Name, version: Name, context: Context) -> VersionRequestsForm:
    """Returns the requests for predictions that this service has answered, for each of the last minutes with some.

    They are in the memory of the service, so they begin with its start.
    """
    context.models.get_version(project=project, model=model, name=version)
    found = context.prediction_metrics.minutes(VersionName(project=project, model=model, version=version))
    return {
        "intervalSeconds": MINUTE_S,
        "sinceTime": timestamp(context.started_time_s),
        "minutes": [
            {
                "time": minute.start_s,
                "requests": minute.num_requests,
                "errors": minute.num_errors,
                "meanLatencySeconds": minute.latency_s / minute.num_requests,
            }
            for minute in found
        ],
    }


def _server(server: JobRecord, context: ServiceContext) -> ServerForm:
    status = server.replicas[0].status if server.replicas else None
    waits = context.controller.schedule.explain(server) if server.state is JobState.QUEUED else None
    return {
        "name": server_name(server),
        "state": server.state,
        "ready": is_ready(server),
        "draining": server.drain_time_s is not None,
        "phase": "" if status is None else status.phase.value,
        "host": "" if status is None else status.host,
        "createTime": timestamp(server.create_time_s),
        "startTime": None if server.start_time_s is None else timestamp(server.start_time_s),
        "waitingFor": None if waits is None else describe_waiting(waits),
        "numRestarts": 0 if status is None else len(status.restarts),
    }
