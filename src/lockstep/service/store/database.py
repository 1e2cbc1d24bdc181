"""Opening the database: its engine, its settings, its migrations, its transactions."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event

from lockstep.errors import UnavailableError

MIGRATIONS: Final = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S: Final = 10.0
BUSY_PAUSE_S: Final = 0.01

_READING: Final = "lockstep_reading"


def connect_database(url: str) -> Engine:
    """Returns the engine of a database whose tables have this version's form; connects when it is first used.

    A transaction of the engine writes, and on SQLite writers come one after the other: it takes its turn when it
    begins, so that what it reads stays true until it ends. `reading` is for transactions that only read.

    Args:
        url: SQLAlchemy's URL, such as ``sqlite:////home/me/lockstep.db``.
    """
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def open_database(url: str) -> Engine:
    """Opens a database and brings its tables to this version's form; see `connect_database`.

    Raises:
        UnavailableError: it cannot be opened or migrated.
    """
    engine = connect_database(url)
    try:
        migrate(engine)
    except Exception as error:
        engine.dispose()
        raise UnavailableError(f"the database {engine.url.render_as_string()} cannot be opened: {error}") from error
    return engine


def migrate(engine: Engine) -> None:
    """Runs the migrations that the database has not seen, in one transaction: all of them or none."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def reading(engine: Engine) -> Connection:
    """Returns a connection for queries alone: it sees one moment of the database, and waits for no writer.

    Args:
        engine: the opened database.
    """
    return engine.connect().execution_options(**{_READING: True})


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
