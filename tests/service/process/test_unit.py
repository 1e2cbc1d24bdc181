"""The unit that `lockstep up --print-unit` prints, as systemd reads it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import InvalidInputError
from lockstep.home import Home
from lockstep.jobs.scheduling import parse_quotas
from lockstep.service.__main__ import _parse
from lockstep.service.process.unit import NAME, check_unit, unit_of
from lockstep.service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = Home(path=tmp_path / 'a "home" of 100% $HOME \\ mine')
    home.create()
    quotas = parse_quotas({"projects": {"vision": {"machines": 8}}}, source="quotas")
    return Settings(home=home, bucket=str(home.bucket), port=8123, quotas=quotas, run_as="none")


def words(unit: str, key: str) -> list[str]:
    """Returns a setting's words as systemd has them: quotes and escapes are a shell's, % and $ are doubled."""
    (line,) = [line for line in unit.splitlines() if line.startswith(f"{key}=")]
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.partition("=")[2])]


def test_it_runs_the_service_with_these_settings(settings: Settings) -> None:
    interpreter, *rest = words(unit_of(settings), "ExecStart")
    assert interpreter == sys.executable
    assert rest[:3] == ["-P", "-m", "lockstep.service"]
    parsed, descriptor = _parse(rest[3:])
    assert descriptor is None
    assert parsed.kept_by_systemd
    assert (parsed.home, parsed.port, parsed.run_as) == (settings.home, 8123, "none")
    assert parsed.quotas == settings.quotas
    assert words(unit_of(settings), "ExecStopPost")[-2:] == ["lockstep.service.process.ends", str(settings.home.path)]


def test_engine_and_jobs_outlive_the_service_and_a_death_starts_it_again(settings: Settings) -> None:
    lines = unit_of(settings).splitlines()
    assert {"Type=exec", "KillMode=process", "Restart=on-failure", "OOMPolicy=continue"} <= set(lines)


def test_a_path_that_would_begin_another_setting_is_refused(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home\nExecStartPre=false")
    with pytest.raises(InvalidInputError, match=r"cannot contain control characters; received .*nExecStartPre=false"):
        unit_of(Settings(home=home, bucket=str(home.bucket)))


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"run_as": "nobody"}, "run-as"),
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 is reachable from other machines"),
    ],
)
def test_settings_with_which_no_service_starts_are_refused_before_there_is_a_unit(
    settings: Settings, changes: dict[str, str], refused: str
) -> None:
    with pytest.raises(InvalidInputError, match=refused):
        check_unit(replace(settings, **changes))


def test_the_operator_is_warned_before_there_is_a_unit(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    settings.home.path.parent.chmod(0o700)
    settings.home.path.parent.parent.chmod(0o700)
    assert check_unit(settings) == "", "it was asked for"
    assert "anyone who may submit jobs has root's rights" in check_unit(replace(settings, run_as="auto"))


@pytest.mark.parametrize("user", [0, 1000])
def test_it_says_where_to_put_it(settings: Settings, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    unit = unit_of(settings)
    folder = "/etc/systemd/system" if user == 0 else "~/.config/systemd/user"
    assert f"{folder}/{NAME}" in unit
    assert f"WantedBy={'multi-user' if user == 0 else 'default'}.target" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_it(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(unit_of(settings))
    said = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (said.returncode, [line for line in said.stderr.splitlines() if NAME in line]) == (0, [])
