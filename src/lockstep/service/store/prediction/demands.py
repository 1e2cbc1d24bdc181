"""Requests that wait at services because no prediction server of their version is ready.

Each service records its own number, so that the one that holds the lease knows the demand at all of them.
"""

from __future__ import annotations

import uuid
from typing import Final, final

from sqlalchemy import ColumnElement, Engine, and_, delete, func, insert, select, update

from lockstep.service.store.database import database_time_s, reading, unguarded, writing
from lockstep.service.store.tables import DEMANDS

MAX_AGE_S: Final = 3.0
"""How long a number counts that is not written again, in seconds. The service that wrote it may have died."""
KEPT_S: Final = 3600.0
"""After this time, the number of a service that died is deleted."""


@final
class DemandStore:
    """The store of waiting requests. Thread-safe. Each method is one transaction. Times are by the database's clock.

    Args:
        engine: the opened database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._service = uuid.uuid4().hex

    def note(self, version_uid: str, *, num_waiting: int) -> None:
        """Records how many requests for a version wait at this service.

        Args:
            version_uid: the uid of the version.
            num_waiting: the number of requests.
        """
        with writing(self._engine, guard=unguarded) as connection:
            now_s = database_time_s(connection)
            values = {"num_waiting": num_waiting, "time_s": now_s}
            if connection.execute(update(DEMANDS).where(self._own(version_uid)).values(values)).rowcount == 0:
                connection.execute(delete(DEMANDS).where(DEMANDS.c.time_s < now_s - KEPT_S))
                connection.execute(insert(DEMANDS).values(version_uid=version_uid, service=self._service, **values))

    def clear(self, version_uid: str) -> None:
        """Records that no requests for a version wait at this service."""
        with writing(self._engine, guard=unguarded) as connection:
            connection.execute(delete(DEMANDS).where(self._own(version_uid)))

    def waiting(self) -> dict[str, int]:
        """Returns the number of requests that wait at all services, by the uid of their version."""
        with reading(self._engine) as connection:
            query = (
                select(DEMANDS.c.version_uid, func.sum(DEMANDS.c.num_waiting))
                .where(DEMANDS.c.time_s > database_time_s(connection) - MAX_AGE_S)
                .group_by(DEMANDS.c.version_uid)
            )
            return {uid: int(number) for uid, number in connection.execute(query)}

    def _own(self, version_uid: str) -> ColumnElement[bool]:
        return and_(DEMANDS.c.version_uid == version_uid, DEMANDS.c.service == self._service)
