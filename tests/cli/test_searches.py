"""Verbs that take a job say of a search, which runs no program itself, where its trials show what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.fake_client import FakeClient, job
from tests.cli.test_answers import SEARCH, site
from tests.cli.test_models import Site
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.cli.tensorboard.folders import Runs
from lockstep.errors import WrongStateError

__all__ = ["site"]

EVENTS = "tensorboard/train/events.out.tfevents.1"


@pytest.fixture
def search(site: Site) -> Site:
    site.bench.create("search", hyperparameters=SEARCH)
    site.bench.searches.step()
    return site


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        ("logs search", "has no log of its own; each of its trials has: lockstep logs search.1."),
        ("metrics search", "has no metrics of its own; each of its trials has: lockstep metrics search.1."),
        ("artifacts search", "has no artifacts of its own; each of its trials has: lockstep artifacts search.1."),
    ],
)
def test_what_a_search_lacks_its_trials_have(search: Site, command: str, lacks: str) -> None:
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0
    assert f"job search is a search, which {lacks}" in " ".join(done.stderr.split())
    assert "lockstep trials search" in done.stderr
    of_trial = CliRunner().invoke(app, command.replace("search", "search.1").split(), catch_exceptions=False)
    assert (of_trial.exit_code, "is a search" in of_trial.stderr) == (0, False)


@pytest.mark.parametrize("command", ["profile search", "exec search -- ls"])
def test_what_needs_a_program_is_refused(search: Site, command: str) -> None:
    with pytest.raises(WrongStateError, match="job search is a search"):
        CliRunner().invoke(app, command.split(), catch_exceptions=False)


def test_tensorboard_shows_all_trials_also_those_that_begin_later(tmp_path: Path) -> None:
    searching, first, second = job("search"), job("search.1"), job("search.2")
    searching["trainingOutput"] = {"isHyperparameterTuningJob": True}
    fake = FakeClient(searching, first)
    fake.files = {EVENTS: b"abc"}
    runs = Runs(fake, ["search", "search"], folder=tmp_path)  # type: ignore[arg-type]
    assert runs.may_change
    runs.sync()
    assert [path.name for path in tmp_path.iterdir()] == ["search.1"]
    fake.found["search.2"] = second
    runs.sync()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["search.1", "search.2"]
    assert (tmp_path / "search.2" / "train" / "events.out.tfevents.1").read_bytes() == b"abc"
    searching["state"] = "SUCCEEDED"
    runs.sync()
    fake.found["search.3"] = job("search.3")
    runs.sync()
    assert not (tmp_path / "search.3").exists(), "a search that is over begins no trial"
