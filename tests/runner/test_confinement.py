"""What is given to a program's user, and taken back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lockstep.runner.confinement import take_ownership, user_variables

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root alone")

USER = 59_123


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_taken_back_is_changed_and_nothing_that_it_points_to(tmp_path: Path) -> None:
    outside, given = tmp_path / "outside", tmp_path / "given"
    outside.mkdir()
    outside.chmod(0o700)
    (outside / "secret").touch(0o600)
    (given / "bin").mkdir(parents=True)
    (given / "bin" / "tool").touch(0o700)
    (given / "text").touch(0o600)
    (given / "folder").symlink_to(outside)
    (given / "file").symlink_to(outside / "secret")
    for path in (given, *given.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    take_ownership(given)
    assert {os.lstat(path).st_uid for path in (given, *given.rglob("*"))} == {os.geteuid()}
    assert [_mode(given / name) for name in (".", "bin", "bin/tool", "text")] == [0o755, 0o755, 0o755, 0o644]
    assert (_mode(outside), _mode(outside / "secret")) == (0o700, 0o600)


def test_the_nodes_credentials_are_never_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key.json"
    key.write_text("{}")
    modes: list[int] = []

    def copy(source: str, target: Path) -> None:
        modes.append(_mode(target.parent))
        target.write_bytes(Path(source).read_bytes())

    monkeypatch.setattr("shutil.copyfile", copy)
    env = user_variables(tmp_path, user=USER, env={"GOOGLE_APPLICATION_CREDENTIALS": str(key)}, sockets=[])
    assert modes == [0o700]
    copied = Path(env["GOOGLE_APPLICATION_CREDENTIALS"])
    assert (copied.read_text(), _mode(copied), copied.stat().st_uid) == ("{}", 0o600, USER)
