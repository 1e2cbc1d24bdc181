"""Counts the changes of jobs in the database, each job's and each project's, so that nothing unchanged is read again.

What a program reports while it runs, in its replicas, is not counted: it changes nothing of a job that is over.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from lockstep.service.store.database import POSTGRESQL
from lockstep.service.store.tables import JOBS, PROJECT_CHANGES

_NUMBER: Final = PROJECT_CHANGES.c.number

REVISED: Final = {"revision": JOBS.c.revision + 1}
"""What each change of a job's columns or replicas also sets, except of what running replicas report."""


def count_change(connection: Connection, uid: str) -> None:
    """Counts a change of a job, in the transaction that makes it. Its last statement, since it locks the project's row.

    Args:
        connection: a connection within a transaction for writing.
        uid: the uid of the job.
    """
    insert = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    first = select(JOBS.c.project, literal(1)).where(JOBS.c.uid == uid)
    query = insert(PROJECT_CHANGES).from_select(["project", "number"], first)
    connection.execute(query.on_conflict_do_update(index_elements=["project"], set_={"number": _NUMBER + 1}))


def read_changes(connection: Connection, project: str) -> int:
    """Returns how many changes of a project's jobs have been committed."""
    query = select(_NUMBER).where(PROJECT_CHANGES.c.project == project)
    return connection.execute(query).scalar() or 0
