"""Moves that are interrupted, or that a folder cannot do by a new name."""

import errno
import os
import time
import uuid
from pathlib import Path

import pytest
from tests.storage.test_conformance import BucketBehindFsspec, ObjectsBehindFsspec

from lockstep.errors import MissingInputError, StorageWriteError
from lockstep.storage import RetryPolicy, open_bucket, remote
from lockstep.storage.local import LocalBucket

POLICY = RetryPolicy(deadline_s=20, first_pause_s=0.001, longest_pause_s=0.001)


@pytest.mark.parametrize("call", ["cp_file", "rm_file"])
def test_an_answer_that_is_lost_makes_nothing_look_missing(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    bucket = BucketBehindFsspec(f"fake://{uuid.uuid4().hex}", policy=POLICY)
    bucket.write("x", b"moved")
    num_lost = 0
    whole = getattr(ObjectsBehindFsspec, call)

    def lose(self: ObjectsBehindFsspec, *arguments: str) -> None:
        nonlocal num_lost
        whole(self, *arguments)
        if num_lost < 2:
            num_lost += 1
            raise ConnectionResetError("it was done, and nobody was told")

    monkeypatch.setattr(ObjectsBehindFsspec, call, lose)
    bucket.move("x", to="y")
    assert [item.key for item in bucket.list()] == ["y"]
    assert num_lost >= 1


def test_a_move_that_died_between_copy_and_delete_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = BucketBehindFsspec("fake://x", policy=POLICY)
    bucket.write("x", b"moved")

    def die(self: ObjectsBehindFsspec, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ObjectsBehindFsspec, "rm_file", die)
        with pytest.raises(KeyboardInterrupt):
            bucket.move("x", to="y")
    assert bucket.read("x") == bucket.read("y") == b"moved"
    bucket.move("x", to="y")
    assert [item.key for item in bucket.list()] == ["y"]


def test_large_objects_have_longer_for_a_silent_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = BucketBehindFsspec("fake://x", policy=POLICY)
    bucket.write("x", b"0123456789")
    monkeypatch.setattr(remote, "LARGE_BYTES", 10)
    policies: list[RetryPolicy] = []

    def connect(policy: RetryPolicy, *, num_attempts: int) -> object:
        policies.append(policy)
        return bucket._files

    monkeypatch.setattr(bucket, "_connect", connect)
    bucket.move("x", to="y")
    assert [policy.read_timeout_s for policy in policies] == [300]


def test_a_folder_renames_in_one_step_and_leaves_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = open_bucket(tmp_path)
    bucket.write("deep/er/x", b"moved")
    number = (tmp_path / "deep" / "er" / "x").stat().st_ino
    bucket.move("deep/er/x", to="y")
    assert (tmp_path / "y").stat().st_ino == number
    assert [path.name for path in tmp_path.iterdir()] == ["y"]
    with pytest.raises(MissingInputError):
        bucket.move("gone", to="new/gone")
    assert [path.name for path in tmp_path.iterdir()] == ["y"], "no folder is made for what is not there"


def test_a_folder_on_another_disk_takes_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket(tmp_path)
    bucket.write("x", b"moved")
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if source.name == "x":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    bucket.move("x", to="there/y")
    assert bucket.read("there/y") == b"moved"
    assert [item.key for item in bucket.list()] == ["there/y"]


def test_a_target_that_is_a_folder_is_no_absence_of_the_source(tmp_path: Path) -> None:
    bucket = LocalBucket(str(tmp_path))
    bucket.write("x", b"")
    bucket.write("folder/y", b"")
    start_s = time.monotonic()
    with pytest.raises(StorageWriteError, match=f"cannot move {tmp_path}/x to folder: Is a directory"):
        bucket.move("x", to="folder")
    assert time.monotonic() - start_s < 10
    assert bucket.exists("x")
