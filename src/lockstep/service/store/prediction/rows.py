"""Reads and writes the rows of models, versions and operations within a transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, Select, Table, and_, or_, select, update

from lockstep.errors import NotFoundError, UnavailableError, WrongStateError
from lockstep.service.store.prediction.records import ModelRecord, OperationRecord, VersionRecord, VersionState
from lockstep.service.store.prediction.traffic import Traffic
from lockstep.service.store.tables import MODELS, OPERATIONS, VERSIONS


def read_model(connection: Connection, project: str, name: str, *, to_write: bool = False) -> ModelRecord:
    """Reads a model. With `to_write`, locks its row, and thereby the model's versions, until the transaction ends."""
    query = select(MODELS).where(MODELS.c.project == project, MODELS.c.name == name)
    row = read_row(connection, query.with_for_update() if to_write else query)
    if row is None:
        raise NotFoundError(f"project {project} has no model {name!r}")
    return ModelRecord(**row)


def read_version(connection: Connection, project: str, model: str, name: str) -> VersionRecord:
    """Reads a version, or raises a `NotFoundError`."""
    query = select(VERSIONS).where(VERSIONS.c.project == project, VERSIONS.c.model == model, VERSIONS.c.name == name)
    row = read_row(connection, query)
    if row is None:
        raise NotFoundError(f"model {model} has no version {name!r}")
    return version_record(row)


def read_traffic(connection: Connection, project: str, model: str) -> Traffic:
    """Reads which versions of a model answer the requests that name no version; at least one.

    Raises:
        NotFoundError: If there is no such model, or no version at all.
        UnavailableError: If no version answers. It says why.
    """
    if traffic := read_model(connection, project, model).traffic:
        return traffic
    raise _no_traffic(connection, project, model)


def _no_traffic(connection: Connection, project: str, model: str) -> NotFoundError | UnavailableError:
    query = select(VERSIONS).where(VERSIONS.c.project == project, VERSIONS.c.model == model)
    row = read_row(connection, page(query, VERSIONS, size=1, before=None))
    if row is None:
        return NotFoundError(f"model {model} has no default version", action="create a version of it")
    newest = version_record(row)
    action = newest.error_message or "try again soon"
    if newest.state is VersionState.READY:
        action = f"give it traffic: `lockstep models traffic {model} {newest.name}=100`"
    return UnavailableError(
        f"model {model} has no default version; the newest of its versions, {newest.name}, is {newest.state}",
        action=action,
    )


def read_operation(connection: Connection, project: str, name: str) -> OperationRecord:
    """Reads an operation, or raises a `NotFoundError`."""
    row = read_row(connection, select(OPERATIONS).where(OPERATIONS.c.project == project, OPERATIONS.c.name == name))
    if row is None:
        raise NotFoundError(f"project {project} has no operation {name!r}")
    return OperationRecord(**row)


def version_names(connection: Connection, project: str, model: str) -> list[str]:
    """Reads the names of a model's versions."""
    query = select(VERSIONS.c.name).where(VERSIONS.c.project == project, VERSIONS.c.model == model)
    return list(connection.execute(query).scalars())


def write_revision(connection: Connection, project: str, model: str) -> None:
    """Records that somebody has changed a model."""
    named = (MODELS.c.project == project, MODELS.c.name == model)
    connection.execute(update(MODELS).where(*named).values(revision=MODELS.c.revision + 1))


def check_answers(record: VersionRecord) -> None:
    """Checks that a version may get a share of its model's traffic.

    Raises:
        WrongStateError: If it is not READY, so that it would not answer.
    """
    if record.state is not VersionState.READY:
        raise WrongStateError(
            f"version {record.name} of {record.model} is {record.state}, and answers no requests",
            action="choose a version that is READY",
        )


def page(query: Select[Any], table: Table, *, size: int, before: tuple[float, str] | None) -> Select[Any]:
    """Returns a query for a page of rows, the newest first."""
    if before is not None:
        time_s, name = before
        older = and_(table.c.create_time_s == time_s, table.c.name < name)
        query = query.where(or_(table.c.create_time_s < time_s, older))
    return query.order_by(table.c.create_time_s.desc(), table.c.name.desc()).limit(size)


def read_row(connection: Connection, query: Select[Any]) -> RowMapping | None:
    """Reads the only row that a query finds; None if it finds none."""
    return connection.execute(query).mappings().one_or_none()


def version_record(row: RowMapping) -> VersionRecord:
    """Returns the record of a row."""
    return VersionRecord(**{**row, "state": VersionState(row["state"])})


def is_version(record: VersionRecord) -> tuple[Any, ...]:
    """Returns the conditions that select a version's row."""
    return (
        VERSIONS.c.project == record.project,
        VERSIONS.c.model == record.model,
        VERSIONS.c.name == record.name,
    )
