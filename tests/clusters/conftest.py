"""What the engines of this folder's tests share: some tests connect to Ray themselves, and it reads its token once."""

from __future__ import annotations

import pytest

from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.home import Home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = Home(path=tmp_path_factory.mktemp("home"))
    made.create()
    EmbeddedHead(made).environment()  # makes the token
    return made


@pytest.fixture(scope="session")
def other_home(tmp_path_factory: pytest.TempPathFactory, home: Home) -> Home:
    """A home for another engine, with the token of the first."""
    made = Home(path=tmp_path_factory.mktemp("home"))
    made.engine.mkdir(parents=True, mode=0o700)
    (made.engine / "ray-token").write_text((home.engine / "ray-token").read_text())
    return made


PROVEN_BY_COMMANDS = (
    "TestEmbeddedRay::test_a_stopped_gang_ends_with_its_programs",
    "TestEmbeddedRay::test_a_failure_names_replica_and_exit_code",
    "TestEmbeddedRay::test_a_shell_runs_in_a_replica",
    "TestLocalMachines::test_a_machine_comes_and_goes_by_its_name",
)
"""Tests of an engine's or a machine's conformance of which `make test` has the same elsewhere: the command line cancels
a job, has one fail and runs a shell on the same engine, and a machine becomes a node and goes."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks inherited tests as heavy in these classes alone."""
    for item in items:
        if item.nodeid.endswith(PROVEN_BY_COMMANDS):
            item.add_marker(pytest.mark.heavy)
