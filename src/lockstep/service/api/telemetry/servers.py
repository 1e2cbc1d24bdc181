"""Finds the prediction servers of a version whose logs or metrics a request reads."""

from __future__ import annotations

from lockstep.errors import NotFoundError
from lockstep.service.context import ServiceContext
from lockstep.service.store import JobRecord, VersionRecord


def find_server(version: VersionRecord, *, name: str, context: ServiceContext) -> JobRecord:
    """Returns a prediction server of a version, which may be over.

    Args:
        version: the version.
        name: the name of the server; empty for the version's newest one.
        context: the parts of the service.

    Raises:
        NotFoundError: If the version has no such server, or has had none yet.
    """
    job_id = f"{version.model}/{version.name}/{name}" if name else None
    found = context.jobs.last_server(version.uid, job_id=job_id)
    if found is None:
        raise NotFoundError(
            f"version {version.name} of model {version.model} has no server {name!r}"
            if name
            else f"version {version.name} of model {version.model} has had no server yet",
            action="leave out the server" if name else "try again soon",
        )
    return found
