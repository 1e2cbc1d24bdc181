"""Writes the rows of versions within a transaction, with what follows from them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from sqlalchemy import Connection, delete, update

from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.service.store.prediction.containers import VersionContainer
from lockstep.service.store.prediction.operation_rows import end_operations
from lockstep.service.store.prediction.policies import Batching, RequestLogging, ScalingPolicy
from lockstep.service.store.prediction.records import OperationCode, VersionRecord, VersionState
from lockstep.service.store.prediction.rows import is_version, read_model
from lockstep.service.store.prediction.traffic import WHOLE
from lockstep.service.store.prediction.traffic_rows import ready_split, write_split
from lockstep.service.store.tables import VERSIONS


class NewVersion(TypedDict):
    """What a new version begins with; see `VersionRecord`. With `scaling`, `num_servers` is not needed."""

    project: str
    model: str
    name: str
    description: str
    labels: Mapping[str, str]
    deployment_uri: str
    machine_type: str
    package_uris: NotRequired[Sequence[str]]
    python_module: NotRequired[str | None]
    prediction_class: NotRequired[str | None]
    container: NotRequired[VersionContainer | None]
    python_version: NotRequired[str | None]
    framework: NotRequired[str | None]
    accelerator: NotRequired[AcceleratorConfig | None]
    num_servers: NotRequired[int]
    scaling: NotRequired[ScalingPolicy | None]
    batching: NotRequired[Batching | None]
    request_logging: NotRequired[RequestLogging | None]
    uploaded_model: NotRequired[str | None]
    split_when_ready: NotRequired[Mapping[str, int] | None]


def version_values(version: NewVersion, *, create_time_s: float) -> dict[str, Any]:
    """Returns the columns of a new version, which is CREATING. Its region is missing.

    Args:
        version: the version.
        create_time_s: the time, in seconds since 1970 UTC.
    """
    scaling = version.get("scaling")
    return {
        **version,
        "uid": uuid.uuid4().hex,
        "labels": dict(version["labels"]),
        "package_uris": list(version.get("package_uris", ())),
        "state": VersionState.CREATING.value,
        "create_time_s": create_time_s,
        "num_servers": version.get("num_servers", 1) if scaling is None else scaling.first_servers,
    }


def write_version(connection: Connection, record: VersionRecord, changes: Mapping[str, Any], *, now_s: float) -> bool:
    """Sets columns of a version if its state is still that of the record; returns whether they were set.

    See `ModelStore.update_version`.

    Args:
        connection: the connection, in a transaction.
        record: the version as it was read.
        changes: the columns to set.
        now_s: the time, in seconds since 1970 UTC.
    """
    state = changes.get("state")
    values = {key: value.value if isinstance(value, VersionState) else value for key, value in changes.items()}
    is_unchanged = VERSIONS.c.state == record.state.value
    model = None
    if state is VersionState.READY:  # the row of the model is locked before that of the version, as everywhere
        model = read_model(connection, record.project, record.model, to_write=True)
    if connection.execute(update(VERSIONS).where(*is_version(record), is_unchanged).values(values)).rowcount == 0:
        return False
    if model is not None:
        if record.split_when_ready is not None:
            split = ready_split(connection, record, record.split_when_ready)
            write_split(connection, model, split, changed_by="service", now_s=now_s)
        elif not model.traffic:
            write_split(connection, model, {record.name: WHOLE}, changed_by="service", now_s=now_s)
        end_operations(connection, record, "CREATE_VERSION", now_s=now_s)
    elif state is VersionState.FAILED:
        error = (OperationCode.FAILED_PRECONDITION, str(changes.get("error_message")))
        for kind in ("CREATE_VERSION", "UPDATE_VERSION"):
            end_operations(connection, record, kind, now_s=now_s, error=error)
    return True


def delete_version(connection: Connection, record: VersionRecord, *, now_s: float) -> None:
    """Deletes a version, and ends the operations on it.

    Args:
        connection: the connection, in a transaction.
        record: the version.
        now_s: the time, in seconds since 1970 UTC.
    """
    connection.execute(delete(VERSIONS).where(*is_version(record)))
    error = (OperationCode.CANCELLED, "the version was deleted")
    for kind in ("CREATE_VERSION", "UPDATE_VERSION"):
        end_operations(connection, record, kind, now_s=now_s, error=error)
    end_operations(connection, record, "DELETE_VERSION", now_s=now_s)
