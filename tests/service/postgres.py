"""A PostgreSQL server of a test's own, from the system's package."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from lockstep.service.store import open_database
from lockstep.testing.ports import free_port

IS_DEFAULT: Final = os.environ.get("LOCKSTEP_TEST_DATABASE") == "postgresql"
"""Whether the tests of the service run on PostgreSQL where they would on SQLite."""
SQLITES_OWN: Final = pytest.mark.skipif(IS_DEFAULT, reason="it reads what SQLite says of its queries")
PASSWORD: Final = "of-the-test"
TIMEOUT_S: Final = 120.0
PORTS_TRIED: Final = 5


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    named = shutil.which("initdb")
    return found[-1].parent if found else Path(named).parent if named else None


def _program(name: str) -> str:
    binaries = _binaries()
    assert binaries is not None
    return str(binaries / name)


def why_not() -> str | None:
    """Says why no server can be started here; None where one can."""
    if _binaries() is None:
        return "PostgreSQL's server is not installed (Debian's package postgresql)"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    try:
        done = subprocess.run(
            [_program("postgres"), "--version"],
            user=_user(),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except OSError as error:  # a sandbox without other users
        return f"PostgreSQL's server cannot be run as {_user()}: {error}"
    return None if done.returncode == 0 else f"PostgreSQL's server does not run here: {done.stderr.strip()}"


def _user() -> str | None:
    """Returns the user that the server runs as; None for this one, or if there is none."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None) if os.geteuid() == 0 else None


@dataclass
class Server:
    """A server on loopback, with the user ``lockstep`` and its password, in a folder that goes with it."""

    folder: Path
    port: int

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count()
        self._with_tables: str | None = None

    def url(self, database: str, *, port: int | None = None) -> str:
        """Returns the URL of a database, without a password."""
        return f"postgresql+psycopg://lockstep@127.0.0.1:{port or self.port}/{database}"

    def create_database(self) -> str:
        """Returns the name of a new, empty database."""
        name = f"test{next(self._numbers)}"
        self.run("psql", "-d", "postgres", "-c", f"CREATE DATABASE {name}")
        return name

    def create_database_with_tables(self) -> str:
        """Returns the name of a new database with the tables of the service, which are made once and copied then."""
        if self._with_tables is None:
            self._with_tables = self.create_database()
            open_database(self.url(self._with_tables), password=PASSWORD).dispose()
        name = f"test{next(self._numbers)}"
        self.run("psql", "-d", "postgres", "-c", f"CREATE DATABASE {name} TEMPLATE {self._with_tables}")
        return name

    def run(self, program: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's own programs as the server's owner."""
        env = {"PATH": os.environ["PATH"], "PGPASSWORD": PASSWORD, "PGHOST": "127.0.0.1", "PGUSER": "lockstep"}
        done = subprocess.run(
            [_program(program), *arguments],
            user=_user(),
            cwd=self.folder,
            env={**env, "PGPORT": str(self.port)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        """Starts it; returns when it answers."""
        log = self.folder / "log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)],
                user=_user(),
                cwd=self.folder,
                stdout=file,
                stderr=file,
            )
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(AssertionError):
                self.run("pg_isready", "-q")
                return
            time.sleep(0.02)
        raise AssertionError(log.read_text())

    def stop(self) -> None:
        """Ends it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(TIMEOUT_S)
            self._process = None


def _start_on_free_port(server: Server) -> None:
    """Starts it at a port that nobody took since it was looked for."""
    for left in reversed(range(PORTS_TRIED)):
        try:
            server.start()
        except AssertionError as error:
            if not left or "Address already in use" not in str(error):
                raise
            server.stop()
            server.port = free_port()
        else:
            return


@contextmanager
def serving() -> Iterator[Server]:
    """Yields a running server."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as place:
        folder = Path(place)
        server = Server(folder=folder, port=free_port())
        password = folder / "password"
        password.write_text(PASSWORD)
        user = _user()
        if user is not None:
            for path in (folder, password):
                shutil.chown(path, user)
        server.run(
            *("initdb", "-D", str(folder / "data"), "-U", "lockstep", "--pwfile", str(password)),
            *("--auth", "scram-sha-256", "--no-sync", "--encoding", "UTF8", "--locale", "C"),
        )
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.write("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n")
        _start_on_free_port(server)
        try:
            yield server
        finally:
            server.stop()
