"""API keys in the database: what they are for, and a one-way digest of their secrets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from sqlalchemy import Engine, RowMapping, insert, or_, select, update

from lockstep.errors import NotFoundError
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.store.database import reading
from lockstep.service.store.tables import API_KEYS


@final
@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """A key as the database holds it; its secret is not in it.

    Attributes:
        id: its public name.
        digest: of its secret, hexadecimal SHA-256.
        label: whose it is.
        scope: what it may do.
        project: the one project that it is for, or ``*``.
        created_by: label of whoever made it.
        create_time_s: when it was made, seconds since 1970 UTC.
        expire_time_s: from when on it is not valid; None for never.
        last_used_time_s: when it was last used, to the minute; None if it never was.
        revoke_time_s: when it was revoked; None if it was not.
        revoked_by: label of whoever revoked it.
    """

    id: str
    digest: str
    label: str
    scope: Scope
    project: str
    created_by: str
    create_time_s: float
    expire_time_s: float | None = None
    last_used_time_s: float | None = None
    revoke_time_s: float | None = None
    revoked_by: str | None = None

    @property
    def principal(self) -> Principal:
        """Whoever holds it."""
        return Principal(label=self.label, scope=self.scope, project=self.project, key_id=self.id)


@final
class KeyStore:
    """The keys. Thread-safe; each method is one transaction.

    Args:
        engine: the opened database.
        clock: seconds since 1970 UTC.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def create(
        self, key_id: str, *, digest: str, principal: Principal, created_by: str, expire_time_s: float | None
    ) -> KeyRecord:
        """Records a key.

        Args:
            key_id: its public name.
            digest: of its secret.
            principal: whom it is for, and for what.
            created_by: label of whoever makes it.
            expire_time_s: from when on it is not valid; None for never.
        """
        values: dict[str, Any] = {
            "id": key_id,
            "digest": digest,
            "label": principal.label,
            "scope": principal.scope.value,
            "project": principal.project,
            "created_by": created_by,
            "create_time_s": self._clock(),
            "expire_time_s": expire_time_s,
        }
        with self._engine.begin() as connection:
            connection.execute(insert(API_KEYS).values(values))
        return self.get(key_id)

    def find(self, key_id: str) -> KeyRecord | None:
        """Returns a key by its public name; None if there is none."""
        with reading(self._engine) as connection:
            row = connection.execute(select(API_KEYS).where(API_KEYS.c.id == key_id)).mappings().one_or_none()
        return None if row is None else _key(row)

    def get(self, key_id: str) -> KeyRecord:
        """Returns a key by its public name.

        Raises:
            NotFoundError: there is none of this name.
        """
        found = self.find(key_id)
        if found is None:
            raise NotFoundError(f"there is no key {key_id!r}", action="see `lockstep keys list`")
        return found

    def list(self) -> list[KeyRecord]:
        """Returns all keys, the oldest first; revoked and expired ones too."""
        query = select(API_KEYS).order_by(API_KEYS.c.create_time_s, API_KEYS.c.id)
        with reading(self._engine) as connection:
            return [_key(row) for row in connection.execute(query).mappings()]

    def has_valid(self) -> bool:
        """Whether there is a key that is neither revoked nor expired."""
        expires_later = or_(API_KEYS.c.expire_time_s.is_(None), API_KEYS.c.expire_time_s > self._clock())
        query = select(API_KEYS.c.id).where(API_KEYS.c.revoke_time_s.is_(None), expires_later).limit(1)
        with reading(self._engine) as connection:
            return connection.execute(query).first() is not None

    def revoke(self, key_id: str, *, by: str) -> KeyRecord:
        """Revokes a key: from now on it is not valid. One that was revoked already stays as it is.

        Raises:
            NotFoundError: there is none of this name.
        """
        valid = (API_KEYS.c.id == key_id, API_KEYS.c.revoke_time_s.is_(None))
        with self._engine.begin() as connection:
            connection.execute(update(API_KEYS).where(*valid).values(revoke_time_s=self._clock(), revoked_by=by))
        return self.get(key_id)

    def note_use(self, key_id: str) -> None:
        """Records that a key was used now."""
        with self._engine.begin() as connection:
            connection.execute(update(API_KEYS).where(API_KEYS.c.id == key_id).values(last_used_time_s=self._clock()))


def _key(row: RowMapping) -> KeyRecord:
    return KeyRecord(**{**row, "scope": Scope(row["scope"])})
