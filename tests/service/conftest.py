"""A bench for the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.postgres import Server, serving, why_not

from lockstep.home import Home
from lockstep.service.problems import Problems
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, SecretStore, open_database
from lockstep.service.vault import Vault
from lockstep.testing.bench import Bench, make_controller
from lockstep.testing.local_cluster import LocalCluster
from lockstep.testing.served import Served


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the session's tests; each takes a database of its own."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with serving() as server:
        yield server


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    home = Home(path=tmp_path)
    settings = Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)
    cluster = LocalCluster()
    database = open_database(f"sqlite:///{home.database}")
    store = JobStore(database)
    vault = Vault(store=SecretStore(database), key_path=home.secret_key)
    problems = Problems()
    controller = make_controller(database, cluster=cluster, settings=settings, problems=problems)
    yield Bench(
        home=home,
        settings=settings,
        store=store,
        vault=vault,
        cluster=cluster,
        controller=controller,
        problems=problems,
    )
    cluster.shut_down()
    database.dispose()


@pytest.fixture
def service(bench: Bench) -> Iterator[Served]:
    made = Served(bench)
    yield made
    made.close()
