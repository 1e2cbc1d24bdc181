"""PostgreSQL as the database: how it is named and reached, and for how long an answer is waited for.

A password stands in no URL, so that it stands in no argument, log or error: libpq takes it from ``PGPASSWORD``, a
password file (``~/.pgpass``) or a service file (``postgresql:///?service=NAME``).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError

from lockstep.errors import InvalidInputError, UnavailableError

SCHEME: Final = "postgresql+psycopg"
EXAMPLE: Final = f"{SCHEME}://lockstep@db.example.com/lockstep"
PASSWORD_VARIABLE: Final = "PGPASSWORD"  # noqa: S105  # the variable's name

CONNECT_TIMEOUT_S: Final = 5.0
STATEMENT_TIMEOUT_S: Final = 8.0
IDLE_IN_TRANSACTION_S: Final = 4.0
"""How long a client may pause within a transaction: one that was suspended there must not hold its locks for ever."""
POOL_SIZE: Final = 10
MAX_OVERFLOW: Final = 40
"""As many connections as the REST interface has threads, and some for the loops."""
POOL_TIMEOUT_S: Final = 5.0


def parse_database_url(given: str, *, what: str) -> str:
    """Returns the URL of a PostgreSQL database as `connect_postgres` takes it.

    Args:
        given: what somebody gave.
        what: what to call it in errors.

    Raises:
        InvalidInputError: it is no such URL, or has a password in it.
    """
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in ("postgresql", SCHEME):
        shown = given if url is None or url.password is None else url.render_as_string()
        raise InvalidInputError(f"{what}: not the URL of a PostgreSQL database", received=shown, allowed=EXAMPLE)
    if url.password is not None or "password" in url.query:
        raise InvalidInputError(
            f"{what}: a password does not belong into a URL, which others can read",
            action=f"put it into ~/.pgpass, a service file, or the variable {PASSWORD_VARIABLE}",
        )
    return url.set(drivername=SCHEME).render_as_string()


def take_password(environment: MutableMapping[str, str]) -> str | None:
    """Returns the password that the environment holds, and removes it there: no process started later has it.

    Args:
        environment: this process's.
    """
    return environment.pop(PASSWORD_VARIABLE, None)


def connect_postgres(url: URL, *, password: str | None) -> Engine:
    """Returns an engine whose every wait is bounded.

    Args:
        url: the database's, without a password.
        password: the password, if libpq is not to look for one itself.

    Raises:
        UnavailableError: the driver is not installed.
    """
    try:
        from lockstep.service.store.bounded_connection import BoundedConnection  # of an optional extra
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"PostgreSQL needs {error.name}", action="install the extra: pip install 'lockstep-train[postgres]'"
        ) from error
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=MAX_OVERFLOW,
        pool_timeout=POOL_TIMEOUT_S,
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
        bounds: dict[str, Any] = {
            "connect_timeout": int(CONNECT_TIMEOUT_S),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "options": _session(),
        }
        secrets = {} if password is None else {"password": password}
        return BoundedConnection.connect(*arguments, **{**bounds, **parameters, **secrets})

    return engine


def _session() -> str:
    settings = {
        "statement_timeout": STATEMENT_TIMEOUT_S,
        "lock_timeout": STATEMENT_TIMEOUT_S / 2,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_S,
    }
    return " ".join(f"-c {name}={seconds * 1000:.0f}" for name, seconds in settings.items())


def allow_long(connection: Connection, *, seconds: float) -> None:
    """Lets the statements of a transaction take longer; its connection is not to be used for others after it."""
    driver: Any = connection.connection.driver_connection
    driver.answer_timeout_s = seconds
    connection.execute(text(f"SET LOCAL statement_timeout = {seconds * 1000:.0f}"))
