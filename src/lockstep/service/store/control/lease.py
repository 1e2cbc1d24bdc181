"""The lease: of several services that share a database, only its holder runs the controller.

The holder renews the lease. If it does not, another service acquires the lease with the next generation. Every
transaction of the holder's loops checks that it still has the lease (`Lease.check`), and every order to the engine has
the holder's generation. So a service that was suspended, and resumes after another one has taken over, changes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import UnavailableError
from lockstep.service.store.control.job_reader import placed
from lockstep.service.store.database import database_time_s, reading
from lockstep.service.store.tables import JOBS, LEASES

NAME: Final = "controller"
TTL_S: Final = 6.0
"""How long a lease is valid without a renewal. After that, another service acquires it in the next pass of its loop."""


@final
class LeaseLostError(UnavailableError):
    """Another service has acquired the lease, so this one may not make its change any more."""


@final
@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of the lease.

    Attributes:
        description: a description of the service: its host, home and process.
        home: the host and home of the service.
        engine: the engine that its jobs run on.
        generation: the generation, which increases with each new term.
        expired: whether the lease has expired because it was not renewed.
    """

    description: str
    home: str
    engine: str
    generation: int
    expired: bool


@final
class Lease:
    """The lease, for one service. `check` is thread-safe; `acquire_or_renew` must be called from one thread.

    Args:
        engine: the opened database.
        home: the host and home of this service.
        process: a description of this service's process.
        cluster: the identity of the engine that its jobs run on.
        is_exclusive: whether no other service can use this database. Then the lease is acquired at once, never expires,
            and is not renewed.
        ttl_s: how long the lease is valid without a renewal, in seconds. It is renewed after a third of that time.
        monotonic: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        home: str = "",
        process: str = "",
        cluster: str = "",
        is_exclusive: bool,
        ttl_s: float = TTL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._values = {
            "home": home,
            "description": f"{home}, {process}",
            "engine": cluster,
            "holder": uuid.uuid4().hex,
        }
        self._is_exclusive = is_exclusive
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._generation: int | None = None
        self._owner = ""
        self._renewed_s = 0.0

    @property
    def owner(self) -> str:
        """The permanent name of this database, unique on a shared engine; "" until `acquire_or_renew` was called."""
        return self._owner

    @property
    def generation(self) -> int | None:
        """The generation of this service's lease; None while it does not hold the lease, as far as it knows."""
        return self._generation

    def acquire_or_renew(self, *, force: bool = False) -> bool:
        """Acquires the lease, or renews it if that is due; returns whether this service has it.

        Args:
            force: whether to write the lease even if no renewal is due, to find out whether the database is writable.
        """
        is_due = not self._is_exclusive and self._monotonic() - self._renewed_s >= self._ttl_s / 3
        if self._generation is not None and not is_due and not force:
            return True
        begun_s = self._monotonic()
        try:
            with self._engine.begin() as connection:
                self._generation = self._take(connection)
        except IntegrityError:  # another service acquired the first lease at the same time
            self._generation = None
        self._renewed_s = begun_s
        return self._generation is not None

    def check(self, connection: Connection) -> None:
        """Checks that this service has the lease, and locks the lease until the transaction ends.

        Args:
            connection: a connection within a transaction for writing.

        Raises:
            LeaseLostError: If this service does not have the lease.
        """
        query = select(LEASES.c.holder, LEASES.c.generation).where(LEASES.c.name == NAME)
        row = connection.execute(query.with_for_update(read=True)).one_or_none()
        if row is None or self._generation is None or not self._is_mine(row.holder, row.generation):
            self._generation = None
            raise LeaseLostError("another service has taken the lease over")

    def release(self) -> None:
        """Releases the lease, so that another service need not wait until it expires. Idempotent."""
        if self._generation is not None and not self._is_exclusive:
            with self._engine.begin() as connection:
                mine = (LEASES.c.holder == self._values["holder"], LEASES.c.generation == self._generation)
                connection.execute(update(LEASES).where(LEASES.c.name == NAME, *mine).values(expire_time_s=0.0))
        self._generation = None

    def database_time_s(self) -> float:
        """Returns the time of the database's clock, in seconds since 1970 UTC."""
        with reading(self._engine) as connection:
            return database_time_s(connection)

    def holder(self) -> Holder | None:
        """Returns the holder of the lease; None if no service has ever acquired it."""
        return holder_of(self._engine)

    def _take(self, connection: Connection) -> int | None:
        query = select(LEASES).where(LEASES.c.name == NAME)
        row = connection.execute(query.with_for_update()).one_or_none()
        now_s = database_time_s(connection)
        values = {**self._values, "expire_time_s": None if self._is_exclusive else now_s + self._ttl_s}
        self._owner = (None if row is None else row.owner) or uuid.uuid4().hex
        values["owner"] = self._owner
        if row is None:
            connection.execute(insert(LEASES).values(name=NAME, generation=1, **values))
            return 1
        is_mine = self._generation is not None and self._is_mine(row.holder, row.generation)
        if not is_mine and not self._is_exclusive and row.expire_time_s is not None and row.expire_time_s > now_s:
            return None
        if not is_mine and not self._is_exclusive and row.engine != self._values["engine"] and _has_placed(connection):
            return None  # jobs run on an engine that this service cannot reach: it would start them twice
        generation = row.generation if is_mine else row.generation + 1
        connection.execute(update(LEASES).where(LEASES.c.name == NAME).values(generation=generation, **values))
        return generation

    def _is_mine(self, holder: str, generation: int) -> bool:
        return (holder, generation) == (self._values["holder"], self._generation)


def holder_of(engine: Engine) -> Holder | None:
    """Returns the holder of the lease of a database; None if no service has ever acquired it."""
    with reading(engine) as connection:
        row = connection.execute(select(LEASES).where(LEASES.c.name == NAME)).one_or_none()
        if row is None:
            return None
        expired = row.expire_time_s is not None and row.expire_time_s <= database_time_s(connection)
    return Holder(
        description=row.description, home=row.home, engine=row.engine, generation=row.generation, expired=expired
    )


def _has_placed(connection: Connection) -> bool:
    return connection.execute(select(JOBS.c.uid).where(placed()).limit(1)).first() is not None
