"""What is left out of a folder that is packed: as git leaves it out, and as `.lockstepignore` says."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.errors import ConfigError, InvalidInputError
from lockstep.submission import packing
from lockstep.submission.packing import pack_folder


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def packed(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(pack_folder(folder, what="package_path").data)) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


TREE = {
    ".gitignore": "# results\n*.log\n!kept.log\n/build/\ndata/*\n!data/small.csv\n**/scratch/*.txt\ndocs\n",
    "train.py": "",
    "a.log": "",
    "kept.log": "",
    "build/x.py": "",
    "inner/build/x.py": "",
    "data/big.csv": "",
    "data/small.csv": "",
    "inner/scratch/n.txt": "",
    "inner/scratch/n.py": "",
    "inner/.gitignore": "*.tmp\n!*.log\n/only_here.py\n",
    "inner/a.log": "",
    "inner/a.tmp": "",
    "inner/only_here.py": "",
    "inner/deep/only_here.py": "",
    "docs/.gitignore": "!*\n",
    "docs/page.md": "",
}


@pytest.mark.skipif(shutil.which("git") is None, reason="git says what git leaves out")
def test_the_rules_are_gits_own(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    expected = sorted(name for name in listed if not name.rpartition("/")[2].startswith("."))
    assert packed(tmp_path) == expected
    assert "inner/a.log" in expected
    assert "docs/page.md" not in expected, "a folder that is left out takes what is in it with it"


def test_the_own_ignore_file_has_the_last_word(tmp_path: Path) -> None:
    write(tmp_path, {**TREE, ".lockstepignore": "kept.log\n!build/\ninner/deep/\n"})
    names = packed(tmp_path)
    assert "kept.log" not in names
    assert "build/x.py" in names, "code that is generated is left out of git, and wanted here"
    assert not any(name.startswith("inner/deep/") for name in names)


def test_rules_of_the_repository_above_count(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.h5\nold/\n", "job/train.py": "", "job/model.h5": "", "old/train.py": ""})
    assert packed(tmp_path / "job") == ["model.h5", "train.py"], "without a repository nothing above is looked at"
    (tmp_path / ".git").mkdir()
    assert packed(tmp_path / "job") == ["train.py"]
    assert packed(tmp_path / "old") == ["train.py"], "somebody named it"


def test_a_folder_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {".lockstepignore": "*\n", "train.py": ""})
    with pytest.raises(InvalidInputError, match="is empty, or all its files are excluded"):
        pack_folder(tmp_path, what="package_path")


def test_a_pattern_that_is_none_is_named(tmp_path: Path) -> None:
    write(tmp_path, {".lockstepignore": "!\n", "train.py": ""})
    with pytest.raises(ConfigError, match=r"\.lockstepignore: Invalid git pattern"):
        pack_folder(tmp_path, what="package_path")


def test_a_folder_that_is_too_large_says_what_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 10_000)
    write(tmp_path, {"train.py": "x" * 100, "data/a": "x" * 6000, "data/b": "x" * 3000, "m.h5": "x" * 2048, "n": "x"})
    with pytest.raises(InvalidInputError) as caught:
        pack_folder(tmp_path, what="package_path")
    assert "holds 10.9 KiB in 5 files, most in data (8.8 KiB), m.h5 (2.0 KiB), train.py (100 B)" in str(caught.value)
    assert (
        "allowed: at most 9.8 KiB; keep data in a bucket, not beside the code, or exclude it in .lockstepignore"
        in str(caught.value)
    )
    write(tmp_path, {".lockstepignore": "data\n"})
    assert packed(tmp_path) == ["m.h5", "n", "train.py"]
