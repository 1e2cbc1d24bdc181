"""Says what the prediction servers of a version wait for."""

from __future__ import annotations

from lockstep.jobs.running.states import JobState
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import describe_waiting
from lockstep.service.control.job_inputs import order_of
from lockstep.service.store import VersionRecord, VersionState


def describe_wait(version: VersionRecord, context: Context) -> str | None:
    """Returns what the newest prediction server of a version waits for: its turn, or a machine. None if for nothing.

    A version without a server waits for a request.
    """
    if version.state not in (VersionState.CREATING, VersionState.READY):
        return None
    if version.state is VersionState.READY and version.scaling is not None and version.num_servers == 0:
        return "a request, which starts a server: it has none, because it had no request for a while"
    server = context.jobs.last_server(version.uid)
    if server is not None and server.state is JobState.QUEUED:
        return describe_waiting(context.controller.schedule.explain(server))
    if server is not None and server.state is JobState.PREPARING and context.provisioner is not None:
        order = order_of(server)
        return None if order is None else context.provisioner.describe_missing([r.node for r in order.replicas])
    return None
