"""Writes the rows of operations within a transaction."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Connection, insert, update

from lockstep.errors import WrongStateError
from lockstep.service.store.prediction.records import CANCELLED_BY, OperationCode, VersionRecord, VersionState
from lockstep.service.store.prediction.rows import is_version, read_operation, read_version
from lockstep.service.store.tables import OPERATIONS, VERSIONS


def operation_values(project: str, kind: str, model: str, version: str | None, *, now_s: float) -> dict[str, Any]:
    """Returns the columns of a new operation, which is not done.

    Args:
        project: the project.
        kind: the kind, by the contract's name, such as ``CREATE_VERSION``.
        model: the name of the model.
        version: the name of the version; None for an operation on the model.
        now_s: the time, in seconds since 1970 UTC.
    """
    return {
        "name": f"{kind.lower()}_{uuid.uuid4().hex[:16]}",
        "project": project,
        "kind": kind,
        "model": model,
        "version": version,
        "create_time_s": now_s,
    }


def end_operations(
    connection: Connection,
    record: VersionRecord,
    kind: str,
    *,
    now_s: float,
    error: tuple[OperationCode, str] | None = None,
) -> None:
    """Ends the operations of a kind on a version that are not done.

    Args:
        connection: the connection, in a transaction.
        record: the version.
        kind: the kind of the operations.
        now_s: the time, in seconds since 1970 UTC.
        error: why they failed; None if they succeeded.
    """
    code, message = error or (None, None)
    connection.execute(
        update(OPERATIONS)
        .where(
            OPERATIONS.c.project == record.project,
            OPERATIONS.c.model == record.model,
            OPERATIONS.c.version == record.name,
            OPERATIONS.c.kind == kind,
            OPERATIONS.c.end_time_s.is_(None),
        )
        .values(end_time_s=now_s, error_code=code, error_message=message)
    )


def mark_deleting(connection: Connection, version: VersionRecord, *, now_s: float) -> str:
    """Marks a version as DELETING, and returns the name of the operation.

    Args:
        connection: the connection, in a transaction.
        version: the version.
        now_s: the time, in seconds since 1970 UTC.
    """
    operation = operation_values(version.project, "DELETE_VERSION", version.model, version.name, now_s=now_s)
    connection.execute(insert(OPERATIONS).values(operation))
    connection.execute(update(VERSIONS).where(*is_version(version)).values(state=VersionState.DELETING.value))
    return operation["name"]


def cancel_creation(connection: Connection, project: str, name: str, *, principal_label: str, now_s: float) -> None:
    """Cancels the creation of a version: the operation ends as cancelled, and the version is marked as DELETING.

    Args:
        connection: the connection, in a transaction.
        project: the project.
        name: the name of the operation.
        principal_label: the label of who cancels it.
        now_s: the time, in seconds since 1970 UTC.

    Raises:
        NotFoundError: If the project has no operation of this name.
        WrongStateError: If the operation is over, or is not the creation of a version.
    """
    operation = read_operation(connection, project, name)
    if operation.end_time_s is not None:
        raise WrongStateError(f"operation {name} is over already")
    if operation.kind == "UPDATE_VERSION":
        raise WrongStateError(
            f"operation {name} cannot be cancelled: the update is recorded, and servers start and end for it",
            action=f"update version {operation.version} again",
        )
    if operation.kind != "CREATE_VERSION" or operation.version is None:
        raise WrongStateError(
            f"operation {name} cannot be cancelled: a deletion cannot be undone",
            action=f"wait until it is over, and create version {operation.version} again",
        )
    record = read_version(connection, project, operation.model, operation.version)
    is_new = VERSIONS.c.state == VersionState.CREATING.value
    deleting = update(VERSIONS).where(*is_version(record), is_new).values(state=VersionState.DELETING.value)
    if connection.execute(deleting).rowcount == 0:
        raise WrongStateError(
            f"operation {name} cannot be cancelled: version {record.name} is no longer being created",
            action="read the operation again",
        )
    cancelled = (OperationCode.CANCELLED, f"{CANCELLED_BY}{principal_label}")
    end_operations(connection, record, "CREATE_VERSION", now_s=now_s, error=cancelled)
