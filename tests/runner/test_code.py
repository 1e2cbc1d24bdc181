"""Packages on a node: source archives and wheels become importable, and what is neither is refused by name."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.runner.code import fetch_files, unpack
from lockstep.submission.packing import stage_folder

PURE = {"lib-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"}


def wheel(folder: Path, files: Mapping[str, str], *, name: str = "lib-1.0-py3-none-any.whl") -> str:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for entry, text in files.items():
            archive.writestr(entry, text)
    (folder / name).write_bytes(data.getvalue())
    return str(folder / name)


def test_folders_and_wheels_are_importable_the_first_one_first(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.mkdir()
    (program / "train.py").write_text("import lib, extra, os; print(lib.NAME, extra.NAME, os.getcwd())")
    urls = [
        stage_folder(program, staging=str(tmp_path / "bucket")),
        wheel(
            tmp_path,
            {
                **PURE,
                "lib/__init__.py": "NAME = 'lib'",
                "lib-1.0.data/purelib/extra.py": "NAME = 'extra'",
                "lib-1.0.data/scripts/run": "",
                "../../escaped.py": "",
            },
        ),
    ]
    code = unpack(urls, folder=tmp_path / "node" / "work")
    assert code[0].folder == tmp_path / "node" / "work" / "program"
    path = ":".join(str(folder) for package in code for folder in package.module_path)
    out = subprocess.run(
        [sys.executable, "-S", "-m", "train"],
        cwd=code[0].folder,
        env={"PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert out.split() == ["lib", "extra", str(code[0].folder)]
    outside = [path for path in (tmp_path / "node").rglob("*") if path.name in ("escaped.py", "run")]
    assert all(code[1].folder in path.parents for path in outside)
    assert not any(path.name == "run" for path in outside)


@pytest.mark.parametrize(
    ("files", "name", "error", "message"),
    [
        (
            {"lib-1.0.dist-info/WHEEL": "Root-Is-Purelib: false\n"},
            "lib-1.0-cp311-cp311-linux_x86_64.whl",
            InvalidInputError,
            "lib-1.0-cp311-cp311-linux_x86_64.whl has compiled parts; allowed: wheels of pure Python",
        ),
        ({"lib.py": ""}, "lib-1.0-py3-none-any.whl", CorruptDataError, "has no .dist-info/WHEEL"),
        ({"lib.py": ""}, "lib.zip", InvalidInputError, "received 'lib.zip'; allowed: a .tar.gz or a .whl"),
        ({"lib.py": ""}, "lib.tar.gz", CorruptDataError, "lib.tar.gz cannot be unpacked"),
    ],
)
def test_what_nothing_could_be_imported_from_is_refused(
    tmp_path: Path, files: dict[str, str], name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        unpack([wheel(tmp_path, files, name=name)], folder=tmp_path / "work")
    assert message in str(caught.value)


def test_a_pinned_file_may_lie_in_a_folder_and_must_not_have_changed(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"numbers")
    digest = hashlib.sha256(b"numbers").hexdigest()
    order = FileOrder(url=str(tmp_path / "weights"), name="deployed-model/a/weights", sha256=digest)
    work = tmp_path / "work"
    work.mkdir()
    fetch_files([order], folder=work)
    assert (work / "deployed-model" / "a" / "weights").read_bytes() == b"numbers"
    (tmp_path / "weights").write_bytes(b"others")
    with pytest.raises(CorruptDataError, match="has changed since it was copied"):
        fetch_files([order], folder=work)
