"""What is deployed is copied, and belongs to the version: later changes and links of others do not matter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import LockstepError, ModelError, StorageError
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.prediction.files import copy_files, delete_files
from lockstep.service.store import VersionRecord, VersionState
from lockstep.serving import model_files
from lockstep.serving.model_files import ModelFile, find_files, find_model
from lockstep.storage import StoredObject, open_bucket

VERSION = VersionRecord(
    project="mine",
    model="m",
    name="v1",
    uid="0123456789abcdef",
    description="",
    labels={},
    deployment_uri="",
    files=(),
    package_uris=(),
    python_module=None,
    machine_type="n1-standard-4",
    state=VersionState.CREATING,
    error_message=None,
    create_time_s=0.0,
    num_servers=1,
    num_failures=0,
    last_failure_time_s=None,
)


def copied(version: VersionRecord, *, bucket: Path) -> tuple[FileOrder, ...]:
    return copy_files(version, bucket=str(bucket), folder=bucket.parent / "temporary")


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_copy_has_the_digest_of_what_was_deployed(tmp_path: Path, is_folder: bool) -> None:
    model = tmp_path / "bucket" / "mine" / "jobs" / "j" / "model" / "a.keras"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    version = replace(VERSION, deployment_uri=str(model.parent if is_folder else model))
    (file,) = copied(version, bucket=tmp_path / "bucket")
    assert file.url == str(tmp_path / "bucket" / "mine" / "models" / "m" / "v1-01234567" / "model.keras")
    assert file.sha256 == hashlib.sha256(b"weights").hexdigest()
    model.write_bytes(b"others")
    assert Path(file.url).read_bytes() == b"weights"
    assert list((tmp_path / "temporary").iterdir()) == []
    for _ in range(2):
        delete_files(replace(version, files=(file,)), bucket=str(tmp_path / "bucket"))
    assert not Path(file.url).exists()


@pytest.mark.parametrize("which", ["model", "folder"])
def test_a_link_leads_out_of_no_project(tmp_path: Path, which: str) -> None:
    bucket = tmp_path / "bucket"
    for name in ("mine", "theirs"):
        (bucket / name).mkdir(parents=True)
    (bucket / "theirs" / "m.keras").write_bytes(b"secret")
    if which == "model":
        model = bucket / "mine" / "m.keras"
        model.symlink_to(bucket / "theirs" / "m.keras")
    else:
        (bucket / "mine" / "f").symlink_to(bucket / "theirs")
        model = bucket / "mine" / "f" / "m.keras"
    with pytest.raises(ModelError, match="a link leads outside its folder"):
        copied(replace(VERSION, deployment_uri=str(model)), bucket=bucket)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    def refused(url: str) -> str:
        with pytest.raises(LockstepError) as caught:
            copied(replace(VERSION, deployment_uri=url), bucket=tmp_path / "bucket")
        return str(caught.value)

    assert "No such file or directory" in refused(str(tmp_path / "bucket" / "mine" / "none.keras"))
    assert "there is no object" in refused(str(tmp_path / "none.keras"))
    assert "received 'no folder with a .keras or .stablehlo file'" in refused(str(tmp_path / "model.h5"))
    assert "no such kind of storage" in refused("moon://b/model.keras")


def test_a_folder_stands_for_the_one_model_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "a.keras").write_bytes(b"")
    assert find_model(str(tmp_path)) == (ModelFile(url=str(tmp_path / "a.keras"), name="model.keras"),)
    for name in ("b.keras", "b.stablehlo"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ModelError, match=rf"a folder with a\.keras, {name}"):
            find_model(str(tmp_path))
        (tmp_path / name).unlink()


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_exported_program_goes_with_the_file_beside_it(tmp_path: Path, is_folder: bool) -> None:
    program = tmp_path / "bucket" / "mine" / "exported" / "net.stablehlo"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"program")
    version = replace(VERSION, deployment_uri=str(program.parent if is_folder else program))
    assert [file.name for file in copied(version, bucket=tmp_path / "bucket")] == ["model.stablehlo"]
    program.with_name("net.stablehlo.json").write_bytes(b"names")
    files = copied(version, bucket=tmp_path / "bucket")
    assert [(file.name, Path(file.url).read_bytes()) for file in files] == [
        ("model.stablehlo", b"program"),
        ("model.stablehlo.json", b"names"),
    ]


def routine(url: Path) -> VersionRecord:
    return replace(VERSION, deployment_uri=str(url), prediction_class="trainer.Predictor")


def test_a_routine_gets_all_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bucket" / "mine" / "artifacts"
    (folder / "weights").mkdir(parents=True)
    (folder / "model.pkl").write_bytes(b"a pickle, which the service never reads")
    (folder / "weights" / "0.npy").write_bytes(b"numbers")
    files = copied(routine(folder), bucket=tmp_path / "bucket")
    own = tmp_path / "bucket" / "mine" / "models" / "m" / "v1-01234567" / "deployed-model"
    assert [(file.name, file.url) for file in files] == [
        ("deployed-model/model.pkl", str(own / "model.pkl")),
        ("deployed-model/weights/0.npy", str(own / "weights" / "0.npy")),
    ]
    assert files[1].sha256 == hashlib.sha256(b"numbers").hexdigest()
    (only,) = copied(routine(folder / "model.pkl"), bucket=tmp_path / "bucket")
    assert only.name == "deployed-model/model.pkl"
    delete_files(replace(VERSION, files=files), bucket=str(tmp_path / "bucket"))
    assert not own.exists()


def test_a_routines_folder_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = tmp_path / "bucket"
    folder = bucket / "mine" / "artifacts"
    for path in (folder, folder / "none"):
        with pytest.raises(ModelError, match=r"received '0 files with 0 bytes'; allowed: 1 to 1000 files"):
            copied(routine(path), bucket=bucket)
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    (folder / "b").write_bytes(b"67890")
    monkeypatch.setattr(model_files, "MAX_BYTES", 9)
    with pytest.raises(ModelError, match="received '2 files with 10 bytes'"):
        copied(routine(folder), bucket=bucket)
    monkeypatch.setattr(model_files, "MAX_BYTES", 10)
    monkeypatch.setattr(model_files, "MAX_FILES", 1)
    with pytest.raises(ModelError, match="allowed: 1 to 1 files with 10 bytes together"):
        copied(routine(folder), bucket=bucket)


def test_a_routines_folder_with_a_link_to_others_is_not_copied(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    folder = bucket / "mine" / "artifacts"
    folder.mkdir(parents=True)
    (bucket / "theirs").mkdir()
    (bucket / "theirs" / "secret").write_bytes(b"secret")
    (folder / "a").symlink_to(bucket / "theirs" / "secret")
    with pytest.raises(ModelError, match="a link leads outside its folder"):
        copied(routine(folder), bucket=bucket)


@pytest.mark.parametrize("find", [find_files, find_model])
def test_a_bucket_that_does_not_respond_now_is_asked_again(
    find: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the bucket does not respond") from ConnectionResetError()

    bucket = type(open_bucket("memory://away"))
    monkeypatch.setattr(bucket, "list", fail)
    monkeypatch.setattr(bucket, "exists", fail)
    for url in ("memory://away/folder", "memory://away/net.stablehlo"):
        with pytest.raises(StorageError, match="does not respond"):
            find(url)


@pytest.mark.parametrize("key", ["../a", "a//b", "a/./b", "a/.."])
def test_an_object_whose_name_no_file_can_have_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket("memory://routine")
    found = [StoredObject(key=key, size_bytes=1, modified_time_s=0.0)]
    monkeypatch.setattr(type(bucket), "list", lambda *_, **__: found)
    with pytest.raises(ModelError, match="no file can have the name of an object in it; received"):
        find_files("memory://routine")
