"""Replicas of jobs in the database: the last status of each, and its machine type."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from sqlalchemy import ColumnElement, Connection, RowMapping, Text, and_, cast, delete, func, insert, select, update

from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.running.orders import STATUS, ReplicaStatus
from lockstep.service.store.tables import JOB_REPLICAS, JOBS

_USAGE: Final = ("cpu_s", "wall_s", "peak_memory_bytes")
_JSON_NULL: Final = "null"
_MACHINE: Final = ("machine_type", "accelerator_type", "accelerator_count")
_STATUS: Final = tuple(
    column.name for column in JOB_REPLICAS.columns if not column.primary_key and column.name not in (*_USAGE, *_MACHINE)
)


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


def write_replicas(connection: Connection, uid: str, replicas: Sequence[ReplicaRecord]) -> None:
    """Replaces the recorded replicas of a job. Rows that have not changed are not written.

    Args:
        connection: a connection within a transaction for writing.
        uid: the uid of the job.
        replicas: all replicas of the job, in the order of the gang.
    """
    recorded = read_replicas(connection, JOBS.c.uid == uid).get(uid, ())
    table = JOB_REPLICAS.c
    for number, replica in enumerate(replicas[: len(recorded)]):
        if replica != recorded[number]:
            query = update(JOB_REPLICAS).where(table.job_uid == uid, table.number == number)
            connection.execute(query.values(_values(replica)))
    added = [
        {"job_uid": uid, "number": number, **_values(replica)}
        for number, replica in enumerate(replicas)
        if number >= len(recorded)
    ]
    if added:
        connection.execute(insert(JOB_REPLICAS), added)
    if len(replicas) < len(recorded):
        connection.execute(delete(JOB_REPLICAS).where(table.job_uid == uid, table.number >= len(replicas)))


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
