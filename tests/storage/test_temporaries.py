import fcntl
import os
import time
from pathlib import Path

import pytest

from lockstep.storage import open_bucket, temporaries
from lockstep.storage.temporaries import LEFT_AFTER_S, TEMPORARY_PREFIX, create_temporary, sweep, temporary_name

OLD = 2 * LEFT_AFTER_S


def leave(folder: Path, name: str, *, age_s: float) -> Path:
    path = folder / f"{TEMPORARY_PREFIX}{name}"
    path.write_bytes(b"half")
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))
    return path


@pytest.mark.parametrize("write", ["write", "upload", "download"])
def test_what_killed_writers_left_is_swept_by_the_next_one(tmp_path: Path, write: str) -> None:
    (tmp_path / "there").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    leave(tmp_path / "folder", "old", age_s=OLD)
    young = leave(tmp_path / "folder", "young", age_s=LEFT_AFTER_S / 2)
    bucket = open_bucket(tmp_path)
    if write == "write":
        bucket.write("folder/x", b"x")
    elif write == "upload":
        bucket.upload("folder/x", path=tmp_path / "there")
    else:
        bucket.download("there", path=tmp_path / "folder" / "x")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == [young.name, "x"]


def test_the_file_of_a_writer_that_lives_is_never_swept(tmp_path: Path) -> None:
    path = tmp_path / temporary_name()
    with create_temporary(path):
        os.utime(path, (0, 0))  # it waits for two days
        sweep(tmp_path, now_s=time.time())
        assert path.exists()
    sweep(tmp_path, now_s=time.time())
    assert not path.exists(), "whoever held it has ended"


def test_a_slow_upload_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket(tmp_path)
    replace = os.replace

    def swept_before(source: Path, target: Path) -> None:
        os.utime(source, (0, 0))
        sweep(tmp_path, now_s=time.time())
        replace(source, target)

    monkeypatch.setattr(os, "replace", swept_before)
    bucket.write("x", b"whole")
    bucket.download("x", path=tmp_path / "copy")
    assert bucket.read("copy") == b"whole"


def test_what_is_no_file_of_a_writer_is_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"x")
    os.utime(there, (0, 0))
    (tmp_path / f"{TEMPORARY_PREFIX}link").symlink_to(there)
    (tmp_path / f"{TEMPORARY_PREFIX}folder").mkdir()
    os.mkfifo(tmp_path / f"{TEMPORARY_PREFIX}pipe")
    sweep(tmp_path, now_s=time.time() + OLD)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_system_without_locks_is_written_and_never_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    old = leave(tmp_path, "old", age_s=OLD)
    open_bucket(tmp_path).write("x", b"x")
    assert old.exists()


def test_a_folder_is_not_looked_through_at_each_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(temporaries, "sweep", lambda folder, now_s: swept.append(folder))
    for number in range(3):
        open_bucket(tmp_path).write(f"{number}", b"")
    assert swept == [tmp_path]
