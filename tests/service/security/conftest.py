"""A service whose programs run as users of their own."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.reachable import make_python
from tests.service.security.confined import POOL, Place, Site

from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.security.job_folders import JobFolders
from lockstep.service.settings import Settings, sqlite_url
from lockstep.service.store import DemandStore, ModelStore, open_database
from lockstep.testing.bench import Bench, open_bench


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-users-", dir="/tmp"))
    folder.chmod(0o755)
    before = dict(os.environ)
    try:
        python, variables = make_python(folder)
        os.environ.update(variables)
        yield Place(folder=folder, python=python)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def confined(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench whose home programs may pass through, whose runners and programs are the reachable Python's."""
    monkeypatch.setattr(sys, "executable", str(place.python))
    home = Home(path=Path(tempfile.mkdtemp(prefix="h", dir=place.folder)))
    settings = Settings(home=home, bucket=str(home.bucket), max_running_jobs=2, users=POOL)
    home.token.write_text("the-token")
    home.engine.mkdir()
    (home.engine / "ray-token").write_text("the-engines-token")
    with open_bench(settings) as made:
        home.database.chmod(0o644)  # as a service without users would have made it
        JobFolders(home=home, bucket=settings.bucket, pool=POOL).prepare()
        made.vault.put(project="local", name="password", value="a secret value", principal_label="ann")
        yield made


@pytest.fixture
def site(confined: Bench) -> Iterator[Site]:
    """A service with models."""
    home = confined.home
    database = open_database(sqlite_url(home))
    models = ModelStore(database)
    deployments = Deployments(
        models=models,
        jobs=confined.store,
        demands=DemandStore(database),
        cluster=confined.cluster,
        catalogue=load_catalogue(),
        bucket=str(home.bucket),
        folder=home.spool / "deployments",
        folders=JobFolders(home=home, bucket=str(home.bucket), pool=POOL),
        wake=confined.controller.wake,
    )
    yield Site(bench=confined, models=models, deployments=deployments)
    database.dispose()
