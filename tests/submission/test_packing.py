"""A folder of code becomes the same archive wherever and whenever it is packed, or one clear line."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from lockstep.errors import InvalidInputError, LockstepError, MissingInputError
from lockstep.submission.packing import pack_folder, stage_folder, stage_package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "program"
    (made / "inner").mkdir(parents=True)
    (made / "train.py").write_text("print('train')")
    (made / "inner" / "model.py").write_text("print('model')")
    (made / "__pycache__").mkdir()
    (made / "__pycache__" / "train.pyc").write_text("x")
    return made


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def test_an_archive_depends_on_names_and_contents_alone(folder: Path) -> None:
    before = pack_folder(folder, what="package_path")
    assert names(before.data) == ["program/inner/model.py", "program/train.py"]
    os.utime(folder / "train.py", (1, 1))
    assert pack_folder(folder, what="package_path") == before
    (folder / "train.py").write_text("print('other')")
    assert pack_folder(folder, what="package_path") != before


def test_a_file_that_shrinks_while_it_is_packed_has_what_was_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def truncate_and_read(path: Path) -> bytes:
        path.write_text("cut")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", truncate_and_read)
    with tarfile.open(fileobj=io.BytesIO(pack_folder(folder, what="package_path").data)) as archive:
        member = archive.extractfile("program/train.py")
        assert member is not None
        assert member.read() == b"cut"


def test_a_file_that_goes_while_it_is_packed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def remove_and_read(path: Path) -> bytes:
        path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", remove_and_read)
    with pytest.raises(MissingInputError, match=r"package_path: .*model\.py cannot be read: No such file"):
        pack_folder(folder, what="package_path")


def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("inner"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)  # the superuser may read everything
    with pytest.raises(MissingInputError, match=r"package_path: .*/inner cannot be read: Permission denied"):
        pack_folder(folder, what="package_path")


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is empty, or all its files are excluded"):
        pack_folder(tmp_path, what="package_path")


def test_secrets_environments_and_hidden_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.py", ".env", ".demo/home/token", "env/pyvenv.cfg", "mine/token", "other/token", "pkg/model.py"):
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "code" / "other" / "lockstep.db").write_text("x")
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "code" / "mine"))
    with tarfile.open(fileobj=io.BytesIO(pack_folder(tmp_path / "code", what="package_path").data)) as archive:
        assert archive.getnames() == ["code/pkg/model.py", "code/train.py"]


def test_a_folder_is_uploaded_once_and_told(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    url = stage_folder(folder, staging=str(tmp_path / "bucket"), say=said.append)
    written_s = Path(url).stat().st_mtime_ns
    assert stage_folder(folder, staging=str(tmp_path / "bucket"), say=said.append) == url
    assert said == ["packed program: 2 files, 28 B", "packed program: 2 files, 28 B; the bucket has it already"]
    assert Path(url).stat().st_mtime_ns == written_s


def test_packages_keep_their_names_beside_their_digests(tmp_path: Path) -> None:
    archive = tmp_path / "lib-1.0.tar.gz"
    archive.write_bytes(b"one")
    first = stage_package(str(archive), staging=str(tmp_path / "bucket"))
    archive.write_bytes(b"two")
    second = stage_package(str(archive), staging=str(tmp_path / "bucket"))
    assert first != second
    assert (Path(first).name, Path(first).read_bytes(), Path(second).read_bytes()) == (archive.name, b"one", b"two")
    assert stage_package("gs://b/lib.whl", staging=str(tmp_path)) == "gs://b/lib.whl"


@pytest.mark.parametrize(
    ("name", "message"),
    [("lib.zip", "allowed: a .tar.gz or a .whl"), ("lib-1-py3-none-any.whl", "is not a wheel")],
)
def test_packages_of_other_kinds_are_refused_before_they_are_uploaded(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(LockstepError, match=message):
        stage_package(str(tmp_path / name), staging=str(tmp_path / "bucket"))
    assert not (tmp_path / "bucket").exists()
    with pytest.raises(MissingInputError, match=r"packages: absent\.whl cannot be read"):
        stage_package("absent.whl", staging=str(tmp_path))
