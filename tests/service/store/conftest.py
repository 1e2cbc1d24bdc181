"""Databases for the tests of the stores: one on SQLite, and one on each kind in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.service.postgres import PASSWORD, Server

from lockstep.service.store import open_database


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'd.db'}"


@pytest.fixture
def sqlite(url: str) -> Iterator[Engine]:
    engine = open_database(url)
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    server: Server = request.getfixturevalue("postgres")
    engine = open_database(server.url(server.create_database_with_tables()), password=PASSWORD)
    yield engine
    engine.dispose()
