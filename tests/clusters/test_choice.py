"""Which engine a home has, as it is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.cli.cluster import app
from lockstep.clusters import EngineChoice, read_choice, write_choice
from lockstep.clusters.choice import ATTACHED
from lockstep.errors import CorruptDataError
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue

ATTACHED_CHOICE = EngineChoice(name=ATTACHED, address="10.0.0.1:6379")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    made = Home.from_env()
    made.create()
    return made


def test_a_choice_is_read_as_it_was_written(home: Home) -> None:
    assert read_choice(home, catalogue=load_catalogue()) == EngineChoice()
    write_choice(home, ATTACHED_CHOICE)
    assert read_choice(home, catalogue=load_catalogue()) == ATTACHED_CHOICE


@pytest.mark.parametrize("text", ["{", "{}", "null", "[]", "\xff"])
def test_a_record_that_cannot_be_read_is_named_and_can_be_replaced(home: Home, text: str) -> None:
    home.cluster.write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptDataError, match=r"cluster\.json cannot be read: .*; choose the cluster again"):
        read_choice(home, catalogue=load_catalogue())
    chosen = CliRunner().invoke(app, ["attach", "10.0.0.1:6379"], catch_exceptions=False)
    assert chosen.exit_code == 0, chosen.output
    assert read_choice(home, catalogue=load_catalogue()) == ATTACHED_CHOICE
