"""Compiled programs of a version are for its own servers, whatever a server puts into its folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lockstep.runner import compiled_programs
from lockstep.runner.compiled_programs import KEPT_S, CompiledPrograms


def server(tmp_path: Path, name: str, *, version: str = "v") -> CompiledPrograms:
    return CompiledPrograms(tmp_path / "node" / version, own=tmp_path / name, user=None)


def test_a_later_server_finds_what_an_earlier_one_has_compiled(tmp_path: Path) -> None:
    first, second = server(tmp_path, "first"), server(tmp_path, "second")
    first.restore()
    assert list((tmp_path / "first").iterdir()) == []
    (tmp_path / "first" / "a-cache").write_bytes(b"a")
    first.save()
    second.restore()
    (tmp_path / "first" / "a-cache").write_bytes(b"changed later")
    assert (tmp_path / "second" / "a-cache").read_bytes() == b"a"
    (tmp_path / "second" / "b-cache").write_bytes(b"b")
    second.save()
    third = server(tmp_path, "second")  # another launch in the same place
    third.restore()
    assert {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()} == {
        "a-cache": b"a",
        "b-cache": b"b",
    }
    assert third.environment["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "second")


def test_another_version_finds_nothing_of_it(tmp_path: Path) -> None:
    first, other = server(tmp_path, "first"), server(tmp_path, "other", version="w")
    first.restore()
    (tmp_path / "first" / "a-cache").write_bytes(b"a")
    first.save()
    other.restore()
    assert list((tmp_path / "other").iterdir()) == []
    assert (tmp_path / "node" / "v").stat().st_mode & 0o077 == 0


def test_nothing_but_regular_files_of_its_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    made = server(tmp_path, "own")
    made.restore()
    own = tmp_path / "own"
    (own / "link").symlink_to(tmp_path / "secret")
    (own / "hard").hardlink_to(tmp_path / "secret")
    (own / "folder").mkdir()
    os.mkfifo(own / "pipe")
    (own / "good").write_bytes(b"good")
    made.save()
    assert [path.name for path in (tmp_path / "node" / "v").iterdir()] == ["good"]
    (own / "good").unlink()
    for path in own.iterdir():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(OSError, match="Not a directory"):
        made.save()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    made = CompiledPrograms(tmp_path / "node" / "v", own=tmp_path / "own", user=59700)
    made.restore()
    assert (tmp_path / "own").stat().st_uid == 59700
    (tmp_path / "own" / "a").write_bytes(b"root's")
    (tmp_path / "own" / "b").write_bytes(b"theirs")
    os.chown(tmp_path / "own" / "b", 59700, 59700)
    made.save()
    assert [path.name for path in (tmp_path / "node" / "v").iterdir()] == ["b"]


def test_there_are_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = server(tmp_path, "own")
    made.restore()
    for name in "abc":
        (tmp_path / "own" / name).write_bytes(b"1234")
    monkeypatch.setattr(compiled_programs, "MAX_BYTES", 8)
    made.save()
    assert sorted(path.name for path in (tmp_path / "node" / "v").iterdir()) == ["a", "b"]
    monkeypatch.setattr(compiled_programs, "MAX_FILES", 1)
    other = CompiledPrograms(tmp_path / "node" / "w", own=tmp_path / "own", user=None)
    other.save()
    assert [path.name for path in (tmp_path / "node" / "w").iterdir()] == ["a"]


def test_what_no_server_uses_is_removed_in_the_end(tmp_path: Path) -> None:
    used, unused = server(tmp_path, "used", version="used"), tmp_path / "node" / "unused"
    unused.mkdir(parents=True)
    (unused / "a").write_bytes(b"a")
    used.restore()
    used.save()
    left = tmp_path / "node" / "used" / ".partial-0"
    left.write_bytes(b"of a killed runner")
    used.save()
    assert left.exists()
    assert unused.exists()
    long_ago = time.time() - KEPT_S - 60
    for path in (left, unused):
        os.utime(path, (long_ago, long_ago))
    used.save()
    assert not left.exists()
    assert not unused.exists()
    used.restore()
    assert list((tmp_path / "used").iterdir()) == []
