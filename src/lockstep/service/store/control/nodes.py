"""The ledger of nodes in the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, final

from sqlalchemy import Engine, RowMapping, insert, or_, select, tuple_, update

from lockstep.jobs.provisioning import NodeRecord, RecordChange
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.tables import NODES

_FIELDS: Final = tuple(field.name for field in fields(NodeRecord))


@final
class NodeStore:
    """The ledger: nodes from their request until they are gone. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        guard: called in each transaction before it writes; it may raise an exception to forbid the transaction.
    """

    def __init__(self, engine: Engine, *, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._guard = guard

    def current(self, *, failed_since_s: float) -> list[NodeRecord]:
        """Returns the nodes that are not down and those that failed recently, in the order of their requests.

        Args:
            failed_since_s: the time since when failed nodes are included, in seconds since 1970 UTC.
        """
        wanted = or_(NODES.c.down_time_s.is_(None), NODES.c.failed_time_s >= failed_since_s)
        return self._select(wanted)

    def between(self, *, since_s: float, until_s: float) -> list[NodeRecord]:
        """Returns the nodes that were requested before the end of an interval, and were not down before its start.

        Args:
            since_s: the start of the interval, in seconds since 1970 UTC.
            until_s: its end.
        """
        there = or_(NODES.c.down_time_s.is_(None), NODES.c.down_time_s >= since_s)
        return self._select(there & (NODES.c.asked_time_s < until_s))

    def page_ended(self, *, size: int, before: tuple[float, str] | None = None) -> list[NodeRecord]:
        """Returns up to `size` nodes that are down, those that were requested last first.

        Args:
            size: the maximum number of nodes.
            before: the time of the request and the name of the last node of the previous page.
        """
        place = tuple_(NODES.c.asked_time_s, NODES.c.name)
        query = select(NODES).where(NODES.c.down_time_s.is_not(None))
        if before is not None:
            query = query.where(place < before)
        query = query.order_by(NODES.c.asked_time_s.desc(), NODES.c.name.desc()).limit(size)
        with reading(self._engine) as connection:
            return [node_record(row) for row in connection.execute(query).mappings()]

    def of_job(self, uid: str, *, machines: Collection[str]) -> list[NodeRecord]:
        """Returns the nodes that were requested for a job, and those that it had.

        Args:
            uid: the uid of the job.
            machines: the names of the nodes that it had.
        """
        return self._select(or_(NODES.c.asked_for == uid, NODES.c.name.in_(machines)))

    def record(self, *, asked: Sequence[NodeRecord] = (), marks: Iterable[RecordChange] = ()) -> None:
        """Records nodes that are about to be requested, and changes of other nodes."""
        changes = list(marks)
        if not asked and not changes:
            return
        with writing(self._engine, guard=self._guard) as connection:
            if asked:
                connection.execute(insert(NODES), [asdict(node) for node in asked])
            for mark in changes:
                connection.execute(update(NODES).where(NODES.c.name == mark.name).values(dict(mark.changes)))

    def mark(self, name: str, **changes: float | str | None) -> None:
        """Sets columns of one node."""
        self.record(marks=[RecordChange(name=name, changes=changes)])

    def _select(self, condition: Any) -> list[NodeRecord]:
        query = select(NODES).where(condition).order_by(NODES.c.asked_time_s, NODES.c.name)
        with reading(self._engine) as connection:
            return [node_record(row) for row in connection.execute(query).mappings()]


def node_record(row: RowMapping) -> NodeRecord:
    """Returns a node from its row."""
    return NodeRecord(**{name: row[name] for name in _FIELDS})
