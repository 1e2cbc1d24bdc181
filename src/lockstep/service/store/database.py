"""Opens the database: its engine, settings, migrations and transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.pool import ConnectionPoolEntry

from lockstep.errors import UnavailableError
from lockstep.service.store.json_texts import parse_json
from lockstep.service.store.postgres import allow_long, connect_postgres
from lockstep.service.store.tables import JOBS
from lockstep.service.store.turns import FairLock

MIGRATIONS: Final = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S: Final = 10.0
BUSY_PAUSE_S: Final = 0.01

MIGRATION_TIMEOUT_S: Final = 600.0
MIGRATION_LOCK: Final = 0x6C6F636B
"""The key of the advisory lock for migrations on PostgreSQL. No other program may use the same key in the database."""

POSTGRESQL: Final = "postgresql"
Guard = Callable[[Connection], None]
"""A function that is called in a transaction before it writes. It raises an exception to forbid the transaction."""

NUM_CONNECTIONS: Final = 64
"""The maximum number of connections to SQLite: as many as threads of a busy service read at once.

Connections stay open, because opening one takes longer than most transactions. The controller would wait for requests
if there were fewer.
"""

_HAS_TURN: Final = "lockstep_has_turn"
_READING: Final = "lockstep_reading"


def unguarded(_connection: Connection) -> None:
    """A guard that allows every transaction."""


def connect_database(url: str, *, password: str | None = None) -> Engine:
    """Returns the engine of a database whose tables have this version's form. It connects when it is first used.

    Transactions of the engine are for writing; `reading` is for transactions that only read. On SQLite, writers are
    serialized: a transaction acquires the write lock when it begins, so what it reads stays true until it ends. On
    PostgreSQL, at READ COMMITTED, what it reads may change before it writes. A write that depends on a read must
    therefore repeat the condition in its statement, or lock the row.

    Args:
        url: the URL for SQLAlchemy, such as ``sqlite:////home/me/lockstep.db``, or a URL that `parse_database_url`
            returned.
        password: the password for PostgreSQL; None to let libpq find one.

    Raises:
        UnavailableError: If PostgreSQL's driver is not installed.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == POSTGRESQL:
        return connect_postgres(parsed, password=password)
    engine = create_engine(
        parsed, json_deserializer=parse_json, pool_size=NUM_CONNECTIONS, max_overflow=0, pool_use_lifo=True
    )
    event.listen(engine, "connect", _prepare_sqlite)
    _take_turns(engine)
    return engine


def open_database(url: str, *, password: str | None = None) -> Engine:
    """Opens a database and migrates its tables to this version's form; see `connect_database`.

    Raises:
        UnavailableError: If the database cannot be opened or migrated.
    """
    engine = connect_database(url, password=password)
    try:
        migrate(engine)
    except Exception as error:
        engine.dispose()
        action = None
        if isinstance(error, CommandError):  # Alembic does not know the revision of the tables
            action = "another version of Lockstep made it: use that version, or another home or --database"
        raise UnavailableError(
            f"the database {engine.url.render_as_string()} cannot be opened: {error}", action=action
        ) from error
    if engine.dialect.name == POSTGRESQL:
        engine.dispose()  # the connection of the migrations has a longer timeout
    return engine


def migrate(engine: Engine) -> None:
    """Runs the missing migrations in one transaction: all of them or none."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        if engine.dialect.name == POSTGRESQL:  # two services might migrate at once
            allow_long(connection, seconds=MIGRATION_TIMEOUT_S)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def reading(engine: Engine) -> Connection:
    """Returns a connection for queries only. It reads a snapshot of the database, and does not wait for writers.

    Args:
        engine: the opened database.
    """
    if engine.dialect.name == POSTGRESQL:
        return engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine.connect().execution_options(**{_READING: True})


@contextmanager
def writing(engine: Engine, *, guard: Guard) -> Iterator[Connection]:
    """Yields a connection within a transaction for writing, which is committed at the end.

    Args:
        engine: the opened database.
        guard: called at the beginning of the transaction; it may raise an exception to forbid it.
    """
    with engine.begin() as connection:
        guard(connection)
        yield connection


@contextmanager
def excluding(engine: Engine) -> Iterator[None]:
    """Prevents other transactions from creating or changing jobs while the context is active.

    Args:
        engine: the opened database.
    """
    with engine.begin() as connection:  # on SQLite this is enough
        if engine.dialect.name == POSTGRESQL:
            connection.execute(text(f"LOCK TABLE {JOBS.name} IN EXCLUSIVE MODE"))
        yield


def database_time_s(connection: Connection) -> float:
    """Returns the time of the database's clock, in seconds since 1970 UTC, which is the same for all services."""
    is_postgres = connection.dialect.name == POSTGRESQL
    clock = "extract(epoch FROM clock_timestamp())" if is_postgres else "(julianday('now') - 2440587.5) * 86400.0"
    return float(connection.execute(text(f"SELECT {clock}")).scalar_one())


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # By default, Python's driver begins no transaction before CREATE TABLE, so a process that dies in a migration would
    # leave half of it. With None, the driver begins no transactions at all, and `_begin_sqlite` does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}")
    _use_write_ahead_log(cursor)
    cursor.execute("PRAGMA synchronous=FULL")  # committed changes survive a power failure
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Enables WAL mode, so readers do not wait for the writer.

    Retries if the database is busy, because SQLite's busy timeout does not apply here: two processes that open a new
    database at once may collide.
    """
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
        time.sleep(BUSY_PAUSE_S)


def _take_turns(engine: Engine) -> None:
    """Has the threads of this process write to SQLite in the order in which they ask for it.

    SQLite has those that wait sleep, up to 0.1 s at a time, while others come and write. The controller would wait
    for seconds beside many others. Processes wait for each other as SQLite has it.
    """
    turns = FairLock()

    def begin(connection: Connection) -> None:
        # A transaction that reads first and acquires the lock when it writes would fail if another one wrote in
        # between.
        if connection.get_execution_options().get(_READING, False):
            connection.exec_driver_sql("BEGIN")
            return
        # Without its turn, it waits as processes do, and fails as they do.
        if not connection.info.get(_HAS_TURN, False):
            connection.info[_HAS_TURN] = turns.acquire(timeout_s=BUSY_TIMEOUT_S)
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def end(_connection: object, record: ConnectionPoolEntry, *_reason: object) -> None:
        if record.info.pop(_HAS_TURN, False):
            turns.release()

    event.listen(engine, "begin", begin)
    event.listen(engine, "checkin", end)
    event.listen(engine, "invalidate", end)
