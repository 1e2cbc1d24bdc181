"""The lease: of the services over one database, one runs the controller.

Its holder renews it; where it is not renewed another service takes it over, with the next generation. Every transaction
of the holder's loops checks that it still has the lease (`Lease.check`), and every order that it gives to the engine
carries its generation: who was suspended, and wakes up after another one has taken over, changes nothing any more.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import UnavailableError
from lockstep.service.store.control.jobs import placed
from lockstep.service.store.database import POSTGRESQL, reading
from lockstep.service.store.tables import JOBS, LEASES

NAME: Final = "controller"
TTL_S: Final = 6.0
"""How long a lease holds that is not renewed. Another service has it at most that and a pass of its loop later."""


@final
class LeaseLostError(UnavailableError):
    """Another service has taken the lease over: what this one was about to change is not its business any more."""


@final
@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has the lease.

    Attributes:
        description: the service's host, home and process, in words.
        home: the service's host and home alone.
        engine: the engine that its jobs run on.
        generation: grows with each change of hands.
        expired: whether it has not been renewed for too long.
    """

    description: str
    home: str
    engine: str
    generation: int
    expired: bool


@final
class Lease:
    """One service's hold on the lease. Thread-safe for `check`; `hold` is for one thread.

    Args:
        engine: the opened database.
        home: this service's host and home.
        process: this service's process, in words.
        cluster: the engine that its jobs run on, in words.
        sole: whether no other service can be over this database: the lease is then taken at once, and never renewed.
        ttl_s: how long it holds without a renewal; one comes when a third of that is over.
        monotonic: seconds, growing.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        home: str = "",
        process: str = "",
        cluster: str = "",
        sole: bool,
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
        self._sole = sole
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._generation: int | None = None
        self._owner = ""
        self._renewed_s = 0.0

    @property
    def owner(self) -> str:
        """What tells this database from every other one on an engine that both use; "" until the lease is held."""
        return self._owner

    @property
    def generation(self) -> int | None:
        """The generation that this service holds the lease in; None while it does not, as far as it knows."""
        return self._generation

    def hold(self, *, anew: bool = False) -> bool:
        """Takes the lease, or renews it where that is due; returns whether this service has it.

        Args:
            anew: whether to write it to the database though that is not due: it is to show that it can be written.
        """
        is_due = not self._sole and self._monotonic() - self._renewed_s >= self._ttl_s / 3
        if self._generation is not None and not is_due and not anew:
            return True
        begun_s = self._monotonic()
        try:
            with self._engine.begin() as connection:
                self._generation = self._take(connection)
        except IntegrityError:  # two took the first lease at once: the other one has it
            self._generation = None
        self._renewed_s = begun_s
        return self._generation is not None

    def check(self, connection: Connection) -> None:
        """Makes sure, until the transaction ends, that this service has the lease.

        Args:
            connection: within a transaction that writes.

        Raises:
            LeaseLostError: it has not.
        """
        query = select(LEASES.c.holder, LEASES.c.generation).where(LEASES.c.name == NAME)
        row = connection.execute(query.with_for_update(read=True)).one_or_none()
        if row is None or self._generation is None or not self._is_mine(row.holder, row.generation):
            self._generation = None
            raise LeaseLostError("another service has taken the lease over")

    def release(self) -> None:
        """Gives the lease up, so that another service need not wait for its end. Idempotent."""
        if self._generation is not None and not self._sole:
            with self._engine.begin() as connection:
                mine = (LEASES.c.holder == self._values["holder"], LEASES.c.generation == self._generation)
                connection.execute(update(LEASES).where(LEASES.c.name == NAME, *mine).values(expire_time_s=0.0))
        self._generation = None

    def holder(self) -> Holder | None:
        """Returns who has the lease; None before anybody took it."""
        return holder_of(self._engine)

    def _take(self, connection: Connection) -> int | None:
        query = select(LEASES).where(LEASES.c.name == NAME)
        row = connection.execute(query.with_for_update()).one_or_none()
        now_s = _now_s(connection)
        values = {**self._values, "expire_time_s": None if self._sole else now_s + self._ttl_s}
        self._owner = (None if row is None else row.owner) or uuid.uuid4().hex
        values["owner"] = self._owner
        if row is None:
            connection.execute(insert(LEASES).values(name=NAME, generation=1, **values))
            return 1
        is_mine = self._generation is not None and self._is_mine(row.holder, row.generation)
        if not is_mine and not self._sole and row.expire_time_s is not None and row.expire_time_s > now_s:
            return None
        if not is_mine and not self._sole and row.engine != self._values["engine"] and _has_placed(connection):
            return None  # jobs run where this service cannot see them: it would start them a second time
        generation = row.generation if is_mine else row.generation + 1
        connection.execute(update(LEASES).where(LEASES.c.name == NAME).values(generation=generation, **values))
        return generation

    def _is_mine(self, holder: str, generation: int) -> bool:
        return (holder, generation) == (self._values["holder"], self._generation)


def holder_of(engine: Engine) -> Holder | None:
    """Returns who has the lease of a database; None before anybody took it."""
    with reading(engine) as connection:
        row = connection.execute(select(LEASES).where(LEASES.c.name == NAME)).one_or_none()
        if row is None:
            return None
        expired = row.expire_time_s is not None and row.expire_time_s <= _now_s(connection)
    return Holder(
        description=row.description, home=row.home, engine=row.engine, generation=row.generation, expired=expired
    )


def _has_placed(connection: Connection) -> bool:
    return connection.execute(select(JOBS.c.uid).where(placed()).limit(1)).first() is not None


def _now_s(connection: Connection) -> float:
    """Returns the database's own time, which all services see alike."""
    is_postgres = connection.dialect.name == POSTGRESQL
    clock = "extract(epoch FROM clock_timestamp())" if is_postgres else "(julianday('now') - 2440587.5) * 86400.0"
    return float(connection.execute(text(f"SELECT {clock}")).scalar_one())
