import os
from pathlib import Path

import pytest

from lockstep.errors import MissingInputError, StorageError, StorageWriteError
from lockstep.storage import open_bucket


def test_a_bucket_under_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    bucket = open_bucket(tmp_path / "file" / "bucket")
    with pytest.raises(StorageWriteError) as caught:
        bucket.check_writable()
    assert str(caught.value).startswith(f"cannot write to the bucket {tmp_path}/file/bucket: Not a directory")
    assert "\n" not in str(caught.value)
    with pytest.raises(StorageWriteError, match=f"cannot write {tmp_path}/file/bucket/x: Not a directory"):
        bucket.write("x", b"")
    assert bucket.list() == []


def test_an_unreadable_object_is_not_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match=f"cannot read {tmp_path}/loop: ") as caught:
        open_bucket(tmp_path).read("loop")
    assert not isinstance(caught.value, MissingInputError)


def test_a_write_that_fails_leaves_the_old_object_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = open_bucket(tmp_path)
    bucket.write("x", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageWriteError, match="No space left on device"):
        bucket.write("x", b"new")
    assert bucket.read("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_is_being_written_does_not_show(tmp_path: Path) -> None:
    (tmp_path / ".lockstep-tmp-left-by-a-crash").write_bytes(b"half")
    (tmp_path / "x").write_bytes(b"whole")
    bucket = open_bucket(tmp_path)
    assert [item.key for item in bucket.list()] == ["x"]


def test_delete_takes_empty_folders_away_but_not_the_bucket(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path / "bucket")
    bucket.write("a/b/c", b"")
    bucket.write("a/d", b"")
    bucket.delete("a/b/c")
    assert [path.name for path in (tmp_path / "bucket" / "a").iterdir()] == ["d"]
    bucket.delete("a/d")
    assert list((tmp_path / "bucket").iterdir()) == []
