"""What is deployed is copied, and belongs to the version: later changes and links of others do not matter."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import LockstepError, ModelError
from lockstep.jobs.running.orders import FileOrder
from lockstep.service.prediction.files import copy_files, delete_files
from lockstep.service.store import VersionRecord, VersionState
from lockstep.serving.model_files import find_model

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
    assert "received 'no folder with a .keras file'" in refused(str(tmp_path / "model.h5"))
    assert "no such kind of storage" in refused("moon://b/model.keras")


def test_a_folder_stands_for_the_one_model_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "a.keras").write_bytes(b"")
    assert find_model(str(tmp_path)) == str(tmp_path / "a.keras")
    (tmp_path / "b.keras").write_bytes(b"")
    with pytest.raises(ModelError, match=r"a folder with a\.keras, b\.keras"):
        find_model(str(tmp_path))
