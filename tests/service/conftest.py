"""A bench for the service's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from tests.service.lab import Lab
from tests.service.postgres import IS_DEFAULT, PASSWORD, Server, serving, why_not

from lockstep.home import Home
from lockstep.service.settings import Settings
from lockstep.service.store import database
from lockstep.service.store import postgres as postgres_module
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.container_engine import FakeContainerEngine
from lockstep.testing.local_cluster import LocalCluster
from lockstep.testing.served import Served

IMAGE = "reg.example.com/server:1"
"""The image that the registry of `engine` has."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the session's tests; each takes a database of its own."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def databases_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the databases that a test leaves open, as a killed service does: Python 3.13 warns of each."""
    made: list[sqlalchemy.Engine] = []

    def create_engine(*args: Any, **kwargs: Any) -> sqlalchemy.Engine:
        made.append(sqlalchemy.create_engine(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(database, "create_engine", create_engine)
    yield
    for engine in made:
        engine.dispose()


@pytest.fixture(autouse=IS_DEFAULT)
def everything_is_on_postgres(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts a database of PostgreSQL in the place of each SQLite file that a test opens."""
    names: dict[str, str] = {}
    made: list[sqlalchemy.Engine] = []

    def make_url(url: str) -> sqlalchemy.URL:
        parsed = sqlalchemy.make_url(url)
        if parsed.get_backend_name() == database.POSTGRESQL:
            return parsed
        path = str(parsed.database)
        if path not in names:
            names[path] = postgres.create_database()
        return sqlalchemy.make_url(postgres.url(names[path])).set(password=PASSWORD)

    def connect_postgres(url: sqlalchemy.URL, *, password: str | None) -> sqlalchemy.Engine:
        made.append(postgres_module.connect_postgres(url, password=password))
        return made[-1]

    monkeypatch.setattr(database, "make_url", make_url)
    monkeypatch.setattr(database, "connect_postgres", connect_postgres)
    yield
    for engine in made:
        engine.dispose()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite file of a new home. Making its tables would take most of the time in which a bench starts."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    database.open_database(f"sqlite:///{path}").dispose()
    return path


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContainerEngine:
    """A container engine that only acts as one, and is found first; its registry has one image."""
    made = FakeContainerEngine(tmp_path / "engine")
    made.configure(registry={IMAGE: "sha256:1"})
    monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOCKSTEP_CONTAINER_ENGINE", "podman")
    return made


@pytest.fixture
def bench(tmp_path: Path, empty_database: Path) -> Iterator[Bench]:
    home = Home(path=tmp_path)
    shutil.copyfile(empty_database, home.database)
    with open_bench(Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)) as made:
        yield made


@pytest.fixture
def service(bench: Bench) -> Iterator[Served]:
    made = Served(bench)
    yield made
    made.close()


@pytest.fixture
def lab(tmp_path: Path, empty_database: Path) -> Iterator[Lab]:
    home = Home(path=tmp_path)
    shutil.copyfile(empty_database, home.database)
    settings = Settings(home=home, bucket=str(home.bucket))
    with open_bench(settings, cluster=LocalCluster(simulates_machines=True)) as bench:
        yield Lab(bench)
