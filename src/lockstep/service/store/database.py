"""Opening the database: its engine, its settings, its migrations, its transactions."""

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

from lockstep.errors import UnavailableError
from lockstep.service.store.postgres import allow_long, connect_postgres
from lockstep.service.store.tables import JOBS

MIGRATIONS: Final = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S: Final = 10.0
BUSY_PAUSE_S: Final = 0.01

MIGRATION_TIMEOUT_S: Final = 600.0
MIGRATION_LOCK: Final = 0x6C6F636B
"""A number that PostgreSQL's migrations take turns by: any that no other program on the database uses."""

POSTGRESQL: Final = "postgresql"
Guard = Callable[[Connection], None]
"""Called in a transaction that is about to write; raises where it must not."""

_READING: Final = "lockstep_reading"


def unguarded(_connection: Connection) -> None:
    """Lets everybody write."""


def connect_database(url: str, *, password: str | None = None) -> Engine:
    """Returns the engine of a database whose tables have this version's form; connects when it is first used.

    A transaction of the engine writes. On SQLite writers come one after the other: it takes its turn when it begins, so
    that what it reads stays true until it ends. On PostgreSQL, at READ COMMITTED, what it reads may change before it
    writes: whoever writes by what was read says so in the statement, or locks the row. `reading` is for transactions
    that only read.

    Args:
        url: SQLAlchemy's URL, such as ``sqlite:////home/me/lockstep.db``, or what `parse_database_url` returned.
        password: PostgreSQL's, if libpq is not to look for one itself.

    Raises:
        UnavailableError: PostgreSQL's driver is not installed.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == POSTGRESQL:
        return connect_postgres(parsed, password=password)
    engine = create_engine(parsed)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def open_database(url: str, *, password: str | None = None) -> Engine:
    """Opens a database and brings its tables to this version's form; see `connect_database`.

    Raises:
        UnavailableError: it cannot be opened or migrated.
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
        engine.dispose()  # the migrations' connection allows for longer than others may take
    return engine


def migrate(engine: Engine) -> None:
    """Runs the migrations that the database has not seen, in one transaction: all of them or none."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        if engine.dialect.name == POSTGRESQL:  # two first openers would make the same tables
            allow_long(connection, seconds=MIGRATION_TIMEOUT_S)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def reading(engine: Engine) -> Connection:
    """Returns a connection for queries alone: it sees one moment of the database, and waits for no writer.

    Args:
        engine: the opened database.
    """
    if engine.dialect.name == POSTGRESQL:
        return engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine.connect().execution_options(**{_READING: True})


@contextmanager
def writing(engine: Engine, *, guard: Guard) -> Iterator[Connection]:
    """Yields a connection within a transaction that writes, and that is committed at the end.

    Args:
        engine: the opened database.
        guard: called first.
    """
    with engine.begin() as connection:
        guard(connection)
        yield connection


@contextmanager
def excluding(engine: Engine) -> Iterator[None]:
    """Keeps everybody else from creating or changing jobs for as long as it lasts.

    Args:
        engine: the opened database.
    """
    with engine.begin() as connection:  # on SQLite this is enough
        if engine.dialect.name == POSTGRESQL:
            connection.execute(text(f"LOCK TABLE {JOBS.name} IN EXCLUSIVE MODE"))
        yield


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # By default Python's driver opens no transaction before CREATE TABLE, and a process that dies in a migration would
    # leave half of it. With None it opens none at all, and `_begin_sqlite` does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}")
    _use_write_ahead_log(cursor)
    cursor.execute("PRAGMA synchronous=FULL")  # what was answered survives a power cut
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Lets readers not wait for the writer. SQLite's busy timeout does not hold here: two first openers may collide."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
        time.sleep(BUSY_PAUSE_S)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and takes the lock when it writes would fail if another had written in between.
    is_reading = connection.get_execution_options().get(_READING, False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
