"""`lockstep bucket`: what is made, listed, copied and deleted, on folders; the clouds' buckets pass the same suite."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer

from lockstep.cli.bucket.cp import cp
from lockstep.cli.bucket.ls import ls
from lockstep.cli.bucket.mb import mb
from lockstep.cli.bucket.objects import folder_name
from lockstep.cli.bucket.rm import rm
from lockstep.cli.console import OUTPUT
from lockstep.errors import ConflictError, InvalidInputError, MissingInputError
from lockstep.storage import open_bucket

FILES = {"a.txt": "one", "b.txt": "two!", "in/c.txt": "three", "in/deep/d.bin": "x" * 2048}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "from", FILES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def tree(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_folder_is_made_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mb(["new/bucket"])
    assert (folder / "new" / "bucket").is_dir()
    assert capsys.readouterr().out == f"created {folder}/new/bucket\n"
    with pytest.raises(ConflictError, match="already exists"):
        mb(["new/bucket"])


def test_what_is_in_a_folder_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ls(["from"])
    assert capsys.readouterr().out.splitlines() == ["from/a.txt", "from/b.txt", "from/in/"]
    ls(["from"], recursive=True)
    assert capsys.readouterr().out.splitlines() == [f"from/{name}" for name in FILES]
    ls(["from/*.txt", "from/**/*.bin"])
    assert capsys.readouterr().out.splitlines() == ["from/a.txt", "from/b.txt", "from/in/deep/d.bin"]
    ls(["from/in"], long_form=True, recursive=True)
    first, second, total = capsys.readouterr().out.splitlines()
    assert (first.split()[:2], first.split()[-1]) == (["5", "B"], "from/in/c.txt")
    assert (second.split()[:2], second.split()[-1]) == (["2.0", "KiB"], "from/in/deep/d.bin")
    assert total == "2 objects, 2.0 KiB"
    for url in ("from/absent", "absent", "from/*.csv"):
        with pytest.raises(MissingInputError, match="there is no object"):
            ls([url])


@pytest.mark.parametrize("named", ["from", "from/link", "from/**"])
def test_nothing_is_deleted_through_a_link(folder: Path, capsys: pytest.CaptureFixture[str], named: str) -> None:
    kept = folder / "kept" / "in"
    kept.mkdir(parents=True)
    (kept / "x").write_text("x")
    (folder / "from" / "link").symlink_to(folder / "kept")
    rm([named], recursive=True, yes=True)
    assert (kept / "x").read_text() == "x"
    assert not (folder / "from" / "link").is_symlink()
    assert capsys.readouterr().out.startswith("deleted ")


@pytest.mark.parametrize(
    ("sources", "target", "expected"),
    [
        (["from/a.txt"], "to", {"to": "one"}),
        (["from/a.txt"], "to/", {"to/a.txt": "one"}),
        (["from/a.txt", "from/in/c.txt"], "to/", {"to/a.txt": "one", "to/c.txt": "three"}),
        (["from/*.txt"], "there", {"there/a.txt": "one", "there/b.txt": "two!"}),
        (["from"], "to", {f"to/{name}": text for name, text in FILES.items()}),
        (["from"], "there", {f"there/from/{name}": text for name, text in FILES.items()}),
        (["from/"], "to/", {f"to/from/{name}": text for name, text in FILES.items()}),
        (["from/."], "there", {f"there/{name}": text for name, text in FILES.items()}),
    ],
)
def test_copies_are_named_as_cp_does(folder: Path, sources: list[str], target: str, expected: dict[str, str]) -> None:
    (folder / "there").mkdir()
    cp([*sources, target], recursive=True)
    assert {name: text for name, text in tree(folder).items() if not name.startswith("from/")} == expected


def test_stores_are_copied_to_and_from_and_between(folder: Path) -> None:
    store = f"memory://{folder.name}"
    cp(["from", store], recursive=True)
    cp([f"{store}/from", f"{store}-2/p"], recursive=True)
    cp([f"file://{folder}/from/a.txt", f"{store}-2/p"])
    cp([f"{store}-2/p", "back"], recursive=True)
    assert tree(folder / "back") == FILES
    assert [item.key for item in open_bucket(f"{store}-2").list()] == sorted(f"p/{name}" for name in FILES)
    cp([f"{store}-2/p/**", "flat/"])
    assert tree(folder / "flat") == {name.rpartition("/")[2]: text for name, text in FILES.items()}


def test_streams_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x00piped\xff")))
    cp(["-", "to/x"])
    cp(["to/x", "-"])
    assert capfdbinary.readouterr().out == b"\x00piped\xff"
    with pytest.raises(InvalidInputError, match="- can be combined with only one object"):
        cp(["from/*.txt", "-"])
    with pytest.raises(InvalidInputError, match="- can be combined with only one object"):
        cp(["-", "from/a.txt", "to"])


def test_what_an_object_holds_is_shown_on_a_terminal_and_not_obeyed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (folder / "log").write_bytes(b"\x1b]0;title\x07\x9b2J one\r\ntwo")
    monkeypatch.setattr(OUTPUT, "_force_terminal", True)
    cp(["log", "-"])
    assert capfdbinary.readouterr().out.decode() == "\ufffd]0;title\ufffd\ufffd2J one\ntwo"


def test_copies_that_cannot_be_are_refused_before_the_first(folder: Path) -> None:
    for sources, error, message in (
        (["from"], InvalidInputError, "from is a folder; add --recursive"),
        (["from/a.txt", "from/absent"], MissingInputError, "there is no object from/absent"),
        (["from/a.txt", "from/b.txt"], InvalidInputError, "several sources would be copied to to"),
    ):
        with pytest.raises(error, match=message):
            cp([*sources, "to"])
    assert not (folder / "to").exists()


def test_objects_are_deleted_and_folders_only_after_a_question(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rm(["from/*.txt"])
    assert capsys.readouterr().out == "deleted 2 objects, 7 B\n"
    with pytest.raises(InvalidInputError, match="from is a folder"):
        rm(["from"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(
        InvalidInputError, match=r"would delete 2 objects, 2.0 KiB, and standard input is not a terminal; add --yes"
    ):
        rm(["from"], recursive=True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(typer.Exit):
        rm(["from"], recursive=True)
    assert len(tree(folder / "from")) == 2
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    rm(["from/in/deep"], recursive=True)
    rm(["from"], recursive=True, yes=True)
    assert tree(folder) == {}
    with pytest.raises(MissingInputError):
        rm(["from/a.txt"])


@pytest.mark.parametrize(
    ("url", "name"),
    [("gs://b", ""), ("gs://b/", ""), ("gs://b/p/q/", "q"), ("a", "a"), ("/x/a/", "a"), (".", ""), ("a/.", "")],
)
def test_a_folder_has_a_name(url: str, name: str) -> None:
    assert folder_name(url) == name
