"""API keys in the database: their scopes and projects, and one-way digests of their secrets."""

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
    """An API key in the database, without its secret. Times are in seconds since 1970 UTC.

    Attributes:
        id: the public name of the key.
        digest: the SHA-256 of its secret, in hexadecimal.
        label: the label that says whose key it is.
        scope: the scope of the key.
        project: the project that the key is valid for; ``*`` for all projects.
        created_by: the label of the principal that created it.
        create_time_s: the time of its creation.
        expire_time_s: the time from which on it is not valid; None for never.
        last_used_time_s: the time of its last use, to the minute; None if it was never used.
        revoke_time_s: the time when it was revoked; None if it was not.
        revoked_by: the label of the principal that revoked it; None if it was not.
        model: the model that a caller's key is valid for; None for other keys.
        model_version: the only version of that model that it is valid for; None for all of them.
        requests_per_second: the rate of its requests for predictions; None for no limit.
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
    model: str | None = None
    model_version: str | None = None
    requests_per_second: float | None = None

    @property
    def principal(self) -> Principal:
        """The principal that the key identifies."""
        return Principal(
            label=self.label,
            scope=self.scope,
            project=self.project,
            key_id=self.id,
            model=self.model,
            version=self.model_version,
            requests_per_second=self.requests_per_second,
        )


@final
class KeyStore:
    """The store of API keys. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def create(
        self, key_id: str, *, digest: str, principal: Principal, created_by: str, expire_time_s: float | None
    ) -> KeyRecord:
        """Records a key.

        Args:
            key_id: the public name of the key.
            digest: the digest of its secret.
            principal: whose key it is, and what it is valid for.
            created_by: the label of the principal that creates it.
            expire_time_s: the time from which on it is not valid, in seconds since 1970 UTC; None for never.
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
            "model": principal.model,
            "model_version": principal.version,
            "requests_per_second": principal.requests_per_second,
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
            NotFoundError: If there is no key of this name.
        """
        found = self.find(key_id)
        if found is None:
            raise NotFoundError(f"there is no key {key_id!r}", action="see `lockstep keys list`")
        return found

    def list(self) -> list[KeyRecord]:
        """Returns all keys, including revoked and expired ones, the oldest first."""
        query = select(API_KEYS).order_by(API_KEYS.c.create_time_s, API_KEYS.c.id)
        with reading(self._engine) as connection:
            return [_key(row) for row in connection.execute(query).mappings()]

    def has_valid(self) -> bool:
        """Whether there is a key that is neither revoked nor expired."""
        expires_later = or_(API_KEYS.c.expire_time_s.is_(None), API_KEYS.c.expire_time_s > self._clock())
        query = select(API_KEYS.c.id).where(API_KEYS.c.revoke_time_s.is_(None), expires_later).limit(1)
        with reading(self._engine) as connection:
            return connection.execute(query).first() is not None

    def revoke(self, key_id: str, *, principal_label: str) -> KeyRecord:
        """Revokes a key: from now on it is not valid. A key that was revoked before stays unchanged.

        Raises:
            NotFoundError: If there is no key of this name.
        """
        valid = (API_KEYS.c.id == key_id, API_KEYS.c.revoke_time_s.is_(None))
        with self._engine.begin() as connection:
            connection.execute(
                update(API_KEYS).where(*valid).values(revoke_time_s=self._clock(), revoked_by=principal_label)
            )
        return self.get(key_id)

    def note_use(self, key_id: str) -> None:
        """Records that a key was used now."""
        with self._engine.begin() as connection:
            connection.execute(update(API_KEYS).where(API_KEYS.c.id == key_id).values(last_used_time_s=self._clock()))


def _key(row: RowMapping) -> KeyRecord:
    return KeyRecord(**{**row, "scope": Scope(row["scope"])})
