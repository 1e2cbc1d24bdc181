"""Secrets in the database: their names, and their values, which the vault has encrypted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from sqlalchemy import ColumnElement, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import NotFoundError
from lockstep.service.store.database import reading
from lockstep.service.store.tables import SECRETS


@final
@dataclass(frozen=True, kw_only=True)
class SecretRecord:
    """A secret without its value.

    Attributes:
        project: the project whose jobs may receive the secret.
        name: the name of the secret in the project.
        create_time_s: the time when it was first set, in seconds since 1970 UTC.
        update_time_s: the time when it was last set.
        updated_by: the label of the principal that set it last.
    """

    project: str
    name: str
    create_time_s: float
    update_time_s: float
    updated_by: str


@final
class SecretStore:
    """The store of secrets. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def put(self, *, project: str, name: str, sealed: bytes, principal_label: str) -> None:
        """Creates or replaces a secret.

        Args:
            project: the project whose jobs may receive the secret.
            name: the name of the secret in the project.
            sealed: the encrypted value.
            principal_label: the label of the principal that sets it.
        """
        values = {"sealed": sealed, "update_time_s": self._clock(), "updated_by": principal_label}
        key = {"project": project, "name": name, "create_time_s": values["update_time_s"]}
        is_set = False
        while not is_set:
            # On PostgreSQL, another transaction may insert the row between the two statements: then update it.
            with contextlib.suppress(IntegrityError), self._engine.begin() as connection:
                if connection.execute(update(SECRETS).where(*_is(project, name)).values(values)).rowcount == 0:
                    connection.execute(insert(SECRETS).values({**key, **values}))
                is_set = True

    def sealed(self, *, project: str, name: str) -> bytes:
        """Returns the encrypted value of a secret.

        Raises:
            NotFoundError: If the project has no secret of this name.
        """
        with reading(self._engine) as connection:
            found = connection.execute(select(SECRETS.c.sealed).where(*_is(project, name))).scalar_one_or_none()
        if found is None:
            raise _absent(project, name)
        return found

    def list(self, *, project: str) -> list[SecretRecord]:
        """Returns a project's secrets by name, without their values."""
        columns = [SECRETS.c[name] for name in SecretRecord.__dataclass_fields__]
        query = select(*columns).where(SECRETS.c.project == project).order_by(SECRETS.c.name)
        with reading(self._engine) as connection:
            return [SecretRecord(**row) for row in connection.execute(query).mappings()]

    def remove(self, *, project: str, name: str) -> None:
        """Removes a secret.

        Raises:
            NotFoundError: If the project has no secret of this name.
        """
        with self._engine.begin() as connection:
            if connection.execute(delete(SECRETS).where(*_is(project, name))).rowcount == 0:
                raise _absent(project, name)


def _is(project: str, name: str) -> tuple[ColumnElement[bool], ...]:
    return SECRETS.c.project == project, SECRETS.c.name == name


def _absent(project: str, name: str) -> NotFoundError:
    return NotFoundError(f"project {project} has no secret {name!r}", action="see `lockstep secrets list`")
