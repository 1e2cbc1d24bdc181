"""A bench for the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.home import Home
from lockstep.jobs import load_catalogue
from lockstep.service.controller import Controller
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, SecretStore, open_database
from lockstep.service.vault import Vault
from lockstep.testing.bench import Bench
from lockstep.testing.local_cluster import LocalCluster
from lockstep.testing.served import Served


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    home = Home(path=tmp_path)
    settings = Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)
    cluster = LocalCluster()
    database = open_database(f"sqlite:///{home.database}")
    store = JobStore(database)
    vault = Vault(store=SecretStore(database), key_path=home.secret_key)
    controller = Controller(store=store, vault=vault, cluster=cluster, catalogue=load_catalogue(), settings=settings)
    yield Bench(home=home, settings=settings, store=store, vault=vault, cluster=cluster, controller=controller)
    cluster.shut_down()
    database.dispose()


@pytest.fixture
def service(bench: Bench) -> Iterator[Served]:
    made = Served(bench)
    yield made
    made.close()
