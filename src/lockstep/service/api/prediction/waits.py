"""Says what a version waits for, from what is recorded of it and of its prediction servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from lockstep.errors import counted
from lockstep.jobs.running.orders import ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.service.api.resources import describe_waiting, timestamp
from lockstep.service.context import ServiceContext
from lockstep.service.control.job_inputs import order_of
from lockstep.service.prediction.deployments import is_ready, pause_end_s, why_ended
from lockstep.service.prediction.servers import server_name
from lockstep.service.store import JobRecord, VersionRecord, VersionState

_ENDING: Final = (JobState.CANCELLING, *TERMINAL)


def describe_wait(version: VersionRecord, *, servers: Sequence[JobRecord], context: ServiceContext) -> str | None:
    """Returns what a version waits for; None if for nothing.

    A version waits until its files are copied, until all of its servers are ready, and until those that it does not
    need have answered their requests. If several servers are not ready, it is what the newest of them waits for.

    Args:
        version: the version.
        servers: its prediction servers that are not over, or that the engine still holds, the oldest first.
        context: the parts of the service.
    """
    if version.state is VersionState.FAILED:
        return None
    live = [server for server in servers if server.state not in _ENDING]
    draining = [server for server in live if server.drain_time_s is not None]
    if version.state is VersionState.DELETING:
        return _describe_removal(servers, draining=draining)
    if not version.has_files:
        failed = version.error_message
        reason = "" if not failed else f"; it is tried again, since it failed: {failed.splitlines()[0]}"
        return f"its files, which are being copied from {version.deployment_uri}{reason}"
    staying = [server for server in live if server.drain_time_s is None]
    starting = next((server for server in reversed(staying) if not is_ready(server)), None)
    if starting is not None:
        return _describe_start(starting, version=version, context=context)
    if len(staying) < version.num_servers:
        return _describe_pause(version, context=context)
    if draining:
        return _describe_drain(draining[-1])
    if version.num_servers == 0:
        return "a request, which starts a server: it has none, because it had no request for a while"
    return None


def num_ready(servers: Sequence[JobRecord]) -> int:
    """Returns how many of a version's prediction servers are ready, without those that drain."""
    return sum(is_ready(server) and server.drain_time_s is None for server in servers)


def _describe_start(server: JobRecord, *, version: VersionRecord, context: ServiceContext) -> str:
    """Returns what a server that is not ready waits for: its turn, a machine, or what it does until it is ready."""
    if server.state is JobState.QUEUED:
        return describe_waiting(context.controller.schedule.explain(server))
    order = order_of(server)
    if server.state is JobState.PREPARING and context.provisioner is not None and order is not None:
        missing = context.provisioner.describe_missing([replica.node for replica in order.replicas])
        if missing is not None:
            return missing
    status = server.replicas[0].status if server.replicas else None
    text = f"server {server_name(server)}"
    if status is not None and status.restarts:
        last = status.restarts[-1]
        text += f", launched again (restart {last.number}, after {last.reason})"
    text += f", {_describe_phase(status, version=version)}"
    watched = None if order is None else order.replicas[0].server
    # The time of a later launch is not recorded.
    if status is not None and status.phase is ReplicaPhase.RUNNING and not status.restarts and watched is not None:
        assert status.started_time_s is not None, "it is recorded with the phase"
        text += f"; it fails if it is not ready by {timestamp(status.started_time_s + watched.ready_within_s)}"
    return text


def _describe_phase(status: ReplicaStatus | None, *, version: VersionRecord) -> str:
    """Returns what a server does that is not ready."""
    container = version.container
    if status is None:
        return "which is being placed on its node"
    if status.phase is ReplicaPhase.PLACED:
        return "whose runner is starting on its node"
    if status.phase is ReplicaPhase.SETUP:
        return f"which gets its {'files and packages' if container is None else 'image and files'}"
    if status.phase is ReplicaPhase.ENDED:
        return "which has ended" + ("" if status.end is None else f": {status.end.describe()}")
    if container is not None:
        return f"whose container does not answer {container.routes.health} with status 200 yet"
    return "which loads " + ("its routine" if version.prediction_class is not None else "and compiles its model")


def _describe_pause(version: VersionRecord, *, context: ServiceContext) -> str:
    """Returns what a version waits for that has too few servers."""
    end_s = pause_end_s(version, now_s=time.time())
    if end_s is None:
        return "a server, which the service starts next"
    last = context.jobs.last_server(version.uid)
    reason = "" if last is None else f": {why_ended(last)}"
    failed = f"{counted(version.num_failures, 'server')} in a row failed before being ready"
    return f"the end of a pause at {timestamp(end_s)}, when a server is started again; {failed}{reason}"


def _describe_removal(servers: Sequence[JobRecord], *, draining: Sequence[JobRecord]) -> str:
    """Returns what a version waits for that is being deleted."""
    if draining:
        return _describe_drain(draining[-1])
    if servers:
        return "the end of " + (f"server {server_name(servers[0])}" if len(servers) == 1 else f"{len(servers)} servers")
    return "the deletion of its files"


def _describe_drain(server: JobRecord) -> str:
    progress = server.replicas[0].status.progress if server.replicas else None
    num_open = None if progress is None else progress.metrics.get("open")
    reported = "" if num_open is None else f" ({num_open:.0f} at its last report)"
    return f"server {server_name(server)}, which drains: it answers its open requests{reported}, and is then ended"
