import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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


def test_what_links_lead_to_is_not_in_the_size_of_a_folder(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path / "bucket")
    bucket.write("job/x", b"1234")
    bucket.write("other/y", b"12345678")
    for name, target in {"file": "other/y", "folder": "other", "up": "."}.items():
        (tmp_path / "bucket" / "job" / name).symlink_to(tmp_path / "bucket" / target)
    os.mkfifo(tmp_path / "bucket" / "job" / "pipe")
    (tmp_path / "bucket" / "all").symlink_to(tmp_path / "bucket")
    assert [bucket.folder_size_bytes(folder) for folder in ("job", "other", "all")] == [4, 8, 0]


def test_nothing_is_deleted_through_a_link(tmp_path: Path) -> None:
    """A job's program may link to anything in its folder, and whoever deletes the folder may delete anything."""
    bucket = open_bucket(tmp_path / "bucket")
    bucket.write("job/x", b"1234")
    bucket.write("other/y", b"12345678")
    for name, target in {"file": "other/y", "folder": "other", "up": ".", "nothing": "gone"}.items():
        (tmp_path / "bucket" / "job" / name).symlink_to(tmp_path / "bucket" / target)
    assert [item.key for item in bucket.list("job/")] == ["job/file", "job/folder/y", "job/up/other/y", "job/x"]
    found = bucket.list("job/", follows_links=False)
    assert {item.key: item.size_bytes for item in found} == {
        "job/file": 0,
        "job/folder": 0,
        "job/nothing": 0,
        "job/up": 0,
        "job/x": 4,
    }
    bucket.delete_prefix("job/")
    assert [item.key for item in bucket.list()] == ["other/y"]
    assert not (tmp_path / "bucket" / "job").exists()


def test_delete_takes_empty_folders_away_but_not_the_bucket(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path / "bucket")
    bucket.write("a/b/c", b"")
    bucket.write("a/d", b"")
    bucket.delete("a/b/c")
    assert [path.name for path in (tmp_path / "bucket" / "a").iterdir()] == ["d"]
    bucket.delete("a/d")
    assert list((tmp_path / "bucket").iterdir()) == []


@pytest.fixture
def folder_of_root() -> Iterator[Path]:
    """A folder with x and y, which another user may look into, but not change, and of which he may not read x."""
    with tempfile.TemporaryDirectory(prefix="lockstep-permissions-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "closed").mkdir(mode=0o700)
        for key in ("x", "y", "closed/z"):
            (folder / key).write_bytes(b"there")
        (folder / "x").chmod(0o600)
        yield folder


AS_NOBODY = """
import os, sys
from lockstep.errors import LockstepError
from lockstep.storage import open_bucket
bucket = open_bucket(sys.argv[1])
os.setgid(65534)
os.setuid(65534)
for call in sys.argv[2:]:
    try:
        print(eval(call))
    except LockstepError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_a_user_may_not_do_is_no_absence(folder_of_root: Path) -> None:
    calls = {
        "bucket.read('y')": "b'there'",
        "bucket.read('x')": "no permission to read {}/x: Permission denied",
        "bucket.open('x')": "no permission to read {}/x: Permission denied",
        "bucket.read('gone')": "there is no object {}/gone",
        "bucket.exists('x')": "True",
        "bucket.exists('gone')": "False",
        "bucket.exists('closed/z')": "no permission to read {}/closed/z: Permission denied",
        "bucket.list()": "no permission to list {}/: Permission denied",
        "bucket.write('y', b'')": "no permission to write {}/y: Permission denied",
        "bucket.write('new/y', b'')": "no permission to write {}/new/y: Permission denied",
        "bucket.delete('y')": "no permission to delete {}/y: Permission denied",
        "bucket.check_writable()": "no permission to write to the bucket {}: Permission denied",
        "bucket.download('y', path=bucket.url + '/copy')": "StorageWriteError cannot write {}/copy: Permission denied",
    }
    program = [sys.executable, "-c", AS_NOBODY, str(folder_of_root), *calls]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    advice = "; run as a user with this permission, or change the mode of the file or of its folder"
    for said, expected in zip(done.stdout.splitlines(), calls.values(), strict=True):
        line = expected.format(folder_of_root)
        if line.startswith("no permission"):
            line = f"StoragePermissionError {line}{advice}"
        elif line.startswith("there is"):
            line = f"MissingInputError {line}"
        assert said == line
    assert sorted(path.name for path in folder_of_root.iterdir()) == ["closed", "x", "y"]
