"""What an operator sets, and what the home remembers of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.errors import InvalidInputError, StorageError
from lockstep.home import Home
from lockstep.service.__main__ import _parse as parse
from lockstep.service.settings import Settings, choose_database

NOBODY = 65534


@contextmanager
def as_another_user() -> Iterator[None]:
    """Acts, where this is root, as somebody whom file permissions mean something to."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_the_database_of_last_time_is_taken_unless_another_is_asked_for(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    assert choose_database(home, asked="") == ""
    home.create()
    assert choose_database(home, asked="") == ""
    home.database_choice.write_text("postgresql://db.example.com/lockstep\n")
    assert choose_database(home, asked="") == "postgresql://db.example.com/lockstep"
    assert choose_database(home, asked="sqlite") == ""


@pytest.mark.parametrize("folder", ["home", "home/deeper"])
def test_another_users_home_is_said(tmp_path: Path, folder: str) -> None:
    (tmp_path / "home").mkdir(mode=0)
    with as_another_user(), pytest.raises(StorageError, match="cannot be read: Permission denied; set LOCKSTEP_HOME"):
        choose_database(Home(path=tmp_path / folder), asked="")


def test_where_jobs_webhooks_may_lead_reaches_the_service(tmp_path: Path) -> None:
    home = Home(path=tmp_path)
    with pytest.raises(InvalidInputError, match="--allow-webhooks-to; received 'a b'"):
        Settings(home=home, bucket="/b", allow_webhooks_to=("a b",))
    asked = ("10.0.0.0/8", "hooks.corp")
    arguments = [f"--home={tmp_path}", "--bucket=/b", "--max-running-jobs=2", "--run-as=none"]
    settings, _ = parse([*arguments, *(f"--allow-webhooks-to={text}" for text in asked)])
    assert settings.allow_webhooks_to == asked
    assert settings.webhook_targets.hosts == {"hooks.corp"}
    assert settings.webhook_targets.is_local
