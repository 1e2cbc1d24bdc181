"""Opening the database: its engine, its settings, its migrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event

from lockstep.errors import UnavailableError

MIGRATIONS = Path(__file__).parent / "migrations"


def open_database(url: str) -> Engine:
    """Opens the database and brings its tables to this version's form.

    Args:
        url: SQLAlchemy's URL, such as ``sqlite:////home/me/lockstep.db``.

    Raises:
        UnavailableError: it cannot be opened or migrated.
    """
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    try:
        migrate(engine)
    except Exception as error:
        engine.dispose()
        raise UnavailableError(f"the database {engine.url.render_as_string()} cannot be opened: {error}") from error
    return engine


def migrate(engine: Engine) -> None:
    """Runs the migrations that the database has not seen."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
    cursor.execute("PRAGMA synchronous=FULL")  # what was answered survives a power cut
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
