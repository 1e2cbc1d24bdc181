"""Sessions of the console in the database: digests of their tokens, and the keys that they stand for."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from sqlalchemy import Engine, delete, insert, select

from lockstep.service.store.database import reading
from lockstep.service.store.tables import SESSIONS


@final
@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """A session. Times are in seconds since 1970 UTC.

    Attributes:
        id: the SHA-256 of its token, in hexadecimal.
        key_id: the public name of the key that it was begun with; None for the home's own token.
        create_time_s: the time of its beginning.
        expire_time_s: the time from which on it is not valid.
    """

    id: str
    key_id: str | None
    create_time_s: float
    expire_time_s: float


@final
class SessionStore:
    """The store of sessions. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def begin(self, token: str, *, key_id: str | None, lasts_s: float) -> None:
        """Records a session, and deletes those that have expired.

        Args:
            token: the random token of the session.
            key_id: the public name of the key that it stands for; None for the home's own token.
            lasts_s: how long it is valid, in seconds.
        """
        now_s = self._clock()
        values = {"id": _digest(token), "key_id": key_id, "create_time_s": now_s, "expire_time_s": now_s + lasts_s}
        with self._engine.begin() as connection:
            connection.execute(delete(SESSIONS).where(SESSIONS.c.expire_time_s <= now_s))
            connection.execute(insert(SESSIONS).values(values))

    def find(self, token: str) -> SessionRecord | None:
        """Returns the session of a token; None if there is none, or it has expired."""
        query = select(SESSIONS).where(SESSIONS.c.id == _digest(token), SESSIONS.c.expire_time_s > self._clock())
        with reading(self._engine) as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else SessionRecord(**row)

    def end(self, token: str) -> None:
        """Deletes a session. Idempotent."""
        with self._engine.begin() as connection:
            connection.execute(delete(SESSIONS).where(SESSIONS.c.id == _digest(token)))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
