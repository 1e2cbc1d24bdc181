"""Replicas of jobs in the database: the last status of each, and its machine type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, final

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    select,
    update,
)

from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.running.orders import STATUS, ReplicaStatus
from lockstep.service.store.database import POSTGRESQL
from lockstep.service.store.tables import JOB_REPLICAS, JOBS

_USAGE: Final = ("cpu_s", "wall_s", "peak_memory_bytes")
_JSON_NULL: Final = "null"
_MACHINE: Final = ("machine_type", "accelerator_type", "accelerator_count")
_STATUS: Final = tuple(
    column.name for column in JOB_REPLICAS.columns if not column.primary_key and column.name not in (*_USAGE, *_MACHINE)
)
_CHANGED: Final = (*_STATUS, *_USAGE, *_MACHINE)
_UPDATE: Final = (
    update(JOB_REPLICAS)
    .where(JOB_REPLICAS.c.job_uid == bindparam("of_job"), JOB_REPLICAS.c.number == bindparam("of_number"))
    .values({name: bindparam(name) for name in _CHANGED})
)
_NUM_ROWS: Final = 100
"""The number of replicas that one statement changes in SQLite."""
_NUM_UIDS: Final = 500
"""The maximum number of jobs in one query by uid."""


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaRecord:
    """A replica of a job.

    Attributes:
        status: the status that the engine reported last.
        machine_type: the name of its machine type.
        accelerator: its accelerators; None if it has none.
    """

    status: ReplicaStatus
    machine_type: str
    accelerator: AcceleratorConfig | None = None


class ReplicaChange(NamedTuple):
    """What is recorded of a replica from now on."""

    uid: str
    """The uid of the job."""
    number: int
    """The replica's position in the gang, from 0."""
    replica: ReplicaRecord
    """The replica."""


def split_uids(uids: Sequence[str]) -> Iterator[ColumnElement[bool]]:
    """Yields conditions for jobs by their uids, for a few hundred jobs each: databases limit a query's parameters."""
    for start in range(0, len(uids), _NUM_UIDS):
        yield JOBS.c.uid.in_(uids[start : start + _NUM_UIDS])


def write_replicas(connection: Connection, uid: str, replicas: Sequence[ReplicaRecord]) -> None:
    """Replaces the recorded replicas of a job. Rows that have not changed are not written.

    Args:
        connection: a connection within a transaction for writing.
        uid: the uid of the job.
        replicas: all replicas of the job, in the order of the gang.
    """
    recorded = read_replicas(connection, JOBS.c.uid == uid).get(uid, ())
    table = JOB_REPLICAS.c
    change_replicas(connection, changes_of(uid, replicas, recorded=recorded))
    added = [
        {"job_uid": uid, "number": number, **_values(replica)}
        for number, replica in enumerate(replicas)
        if number >= len(recorded)
    ]
    if added:
        connection.execute(insert(JOB_REPLICAS), added)
    if len(replicas) < len(recorded):
        connection.execute(delete(JOB_REPLICAS).where(table.job_uid == uid, table.number >= len(replicas)))


def changes_of(
    uid: str, replicas: Sequence[ReplicaRecord], *, recorded: Sequence[ReplicaRecord]
) -> list[ReplicaChange]:
    """Returns the replicas of a job that are recorded otherwise."""
    pairs = enumerate(zip(replicas, recorded, strict=False))
    return [ReplicaChange(uid, number, replica) for number, (replica, before) in pairs if replica != before]


def change_replicas(connection: Connection, changes: Sequence[ReplicaChange]) -> None:
    """Records replicas that are recorded already, in a transaction for writing."""
    if not changes:
        return
    if connection.dialect.name == POSTGRESQL:  # the driver sends all rows together
        rows = [{"of_job": uid, "of_number": number, **_values(replica)} for uid, number, replica in changes]
        connection.execute(_UPDATE, rows)
        return
    # Python's driver for SQLite gives other threads the interpreter at each row.
    binds = [_bind(connection, name) for name in _CHANGED]
    for start in range(0, len(changes), _NUM_ROWS):
        some = changes[start : start + _NUM_ROWS]
        found = ((change, _values(change.replica)) for change in some)
        parameters = [
            value
            for change, values in found
            for value in (
                change.uid,
                change.number,
                *(bind(values[name]) for name, bind in zip(_CHANGED, binds, strict=True)),
            )
        ]
        connection.exec_driver_sql(_update_of(len(some)), tuple(parameters))


def _bind(connection: Connection, name: str) -> Callable[[Any], Any]:
    """Returns the function that converts a column's value to what the driver takes."""
    dialect = connection.dialect
    return JOB_REPLICAS.c[name].type.dialect_impl(dialect).bind_processor(dialect) or _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


@lru_cache(maxsize=_NUM_ROWS)
def _update_of(num_rows: int) -> str:
    """Returns a statement for SQLite that changes so many replicas. It has no values: all are parameters."""
    row = f"({', '.join('?' * (2 + len(_CHANGED)))})"
    columns = ", ".join(f'"{name}" = new.column{number}' for number, name in enumerate(_CHANGED, start=3))
    rows = ", ".join([row] * num_rows)
    table = JOB_REPLICAS.name
    where = f"{table}.job_uid = new.column1 AND {table}.number = new.column2"
    return f"UPDATE {table} SET {columns} FROM (VALUES {rows}) AS new WHERE {where}"  # noqa: S608


def read_replicas(connection: Connection, of: ColumnElement[bool]) -> dict[str, tuple[ReplicaRecord, ...]]:
    """Returns the replicas of some jobs by job uid, each job's in the order of its gang.

    Args:
        connection: a connection within a transaction.
        of: the condition that selects the jobs, or some of their replicas.
    """
    query = (
        select(JOB_REPLICAS)
        .join(JOBS, JOBS.c.uid == JOB_REPLICAS.c.job_uid)
        .where(of)
        .order_by(JOB_REPLICAS.c.job_uid, JOB_REPLICAS.c.number)
    )
    found: dict[str, list[ReplicaRecord]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["job_uid"], []).append(_record(row))
    return {uid: tuple(replicas) for uid, replicas in found.items()}


def read_first_reports(connection: Connection, uids: Collection[str]) -> dict[str, tuple[ReplicaRecord, ...]]:
    """Returns the first replica of each of some jobs that reported progress, by job uid."""
    table = JOB_REPLICAS.c
    first = (
        select(table.job_uid, func.min(table.number).label("number"))
        .where(table.job_uid.in_(uids), table.progress.is_not(None), cast(table.progress, Text) != _JSON_NULL)
        .group_by(table.job_uid)
        .subquery()
    )
    query = select(JOB_REPLICAS).join(first, and_(table.job_uid == first.c.job_uid, table.number == first.c.number))
    return {row["job_uid"]: (_record(row),) for row in connection.execute(query).mappings()}


def _values(replica: ReplicaRecord) -> dict[str, Any]:
    document = STATUS.dump_python(replica.status, mode="json")
    asked = replica.accelerator
    return {
        **document.pop("usage"),
        **document,
        "machine_type": replica.machine_type,
        "accelerator_type": None if asked is None else asked.type.value,
        "accelerator_count": 0 if asked is None else asked.count,
    }


def _record(row: RowMapping) -> ReplicaRecord:
    document = {name: row[name] for name in _STATUS}
    accelerator = None
    if row["accelerator_type"] is not None:
        accelerator = AcceleratorConfig(type=AcceleratorType(row["accelerator_type"]), count=row["accelerator_count"])
    return ReplicaRecord(
        status=STATUS.validate_python({**document, "usage": {name: row[name] for name in _USAGE}}),
        machine_type=row["machine_type"],
        accelerator=accelerator,
    )
