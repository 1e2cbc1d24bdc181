"""PostgreSQL as the database: its URL, its connections, and their timeouts.

A URL must not contain a password, so that no argument, log or error contains it. libpq reads the password from
``PGPASSWORD``, a password file (``~/.pgpass``) or a service file (``postgresql:///?service=NAME``).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError

from lockstep.errors import InvalidInputError, UnavailableError
from lockstep.service.store.json_texts import parse_json

SCHEME: Final = "postgresql+psycopg"
EXAMPLE: Final = f"{SCHEME}://lockstep@db.example.com/lockstep"
PASSWORD_VARIABLE: Final = "PGPASSWORD"  # noqa: S105  # the variable's name

CONNECT_TIMEOUT_S: Final = 5.0
STATEMENT_TIMEOUT_S: Final = 8.0
IDLE_IN_TRANSACTION_S: Final = 4.0
"""How long a client may pause within a transaction, so that a suspended client does not hold its locks forever."""
POOL_SIZE: Final = 10
MAX_OVERFLOW: Final = 40
"""The pool has as many connections as the REST interface has threads, and some for the loops."""
POOL_TIMEOUT_S: Final = 5.0


def parse_database_url(given: str, *, what: str) -> str:
    """Checks the URL of a PostgreSQL database, and returns it in the form for `connect_postgres`.

    Args:
        given: the URL.
        what: the name of the setting, for error messages.

    Raises:
        InvalidInputError: If `given` is not such a URL, or contains a password.
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
            f"{what}: a URL must not contain a password, because others can read it",
            action=f"put it into ~/.pgpass, a service file, or the variable {PASSWORD_VARIABLE}",
        )
    return url.set(drivername=SCHEME).render_as_string()


def take_password(environment: MutableMapping[str, str]) -> str | None:
    """Removes the password from the environment and returns it, so that no process that is started later inherits it.

    Args:
        environment: the environment of this process.

    Returns:
        The password; None if the environment has none.
    """
    return environment.pop(PASSWORD_VARIABLE, None)


def connect_postgres(url: URL, *, password: str | None) -> Engine:
    """Returns an engine with a timeout for every wait.

    Args:
        url: the URL of the database, without a password.
        password: the password; None to let libpq find one.

    Raises:
        UnavailableError: If the driver is not installed.
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
        json_deserializer=parse_json,
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
    """Sets a longer timeout for the statements of a transaction. Do not use its connection for other transactions.

    Args:
        connection: a connection within the transaction.
        seconds: the timeout of a statement.
    """
    driver: Any = connection.connection.driver_connection
    driver.answer_timeout_s = seconds
    connection.execute(text(f"SET LOCAL statement_timeout = {seconds * 1000:.0f}"))
