"""Exit codes stand in one table: each class of errors has one of it, and commands use no others."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep import errors
from lockstep.cli import main
from lockstep.cli.reference import error_classes, exit_codes_text, meanings
from lockstep.errors import ExitCode, InvalidInputError, JobCancelledError, JobFailedError, UnavailableError

SOURCES = Path(lockstep.__file__).parent
DOCS = SOURCES.parents[1] / "docs"
WITHOUT_CLASS = {ExitCode.SUCCESS, ExitCode.NO, ExitCode.USAGE, ExitCode.INTERRUPTED}


def test_every_class_has_a_code_of_its_own_and_every_code_a_class() -> None:
    classes = error_classes()
    codes = [kind.exit_code for kind in classes]
    assert len(set(codes)) == len(codes) > 20
    assert set(ExitCode) - set(codes) == WITHOUT_CLASS
    for kind in classes:
        words = "_".join(re.findall("[A-Z][a-z]*", kind.__name__.removesuffix("Error"))).upper()
        assert kind.exit_code.name == (words if kind is not errors.LockstepError else "INTERNAL")


def test_every_code_has_a_meaning_and_the_documentation_has_them_all() -> None:
    assert meanings().keys() == set(ExitCode)
    assert exit_codes_text() in (DOCS / "cli.md").read_text("utf-8")


def test_the_codes_that_other_pages_name_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \| (\d+) \|", (DOCS / "data" / "storage.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 5
    for name, code in rows:
        assert getattr(errors, name).exit_code == int(code)
    help_texts = re.findall(r"Exit codes: (.*?)\n\n", (DOCS / "cli.md").read_text("utf-8"), re.DOTALL)
    assert len(help_texts) == 3
    for text in help_texts:
        for code in re.findall(r"(?:^|; )(\d+) ", " ".join(text.split())):
            assert int(code) in set(ExitCode), text


def _calls(tree: ast.AST) -> Iterator[ast.expr]:
    """Yields the arguments of all calls that end a process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit", "SystemExit"):
            yield from node.args


def test_commands_end_with_codes_of_the_table_or_of_the_program_that_they_run() -> None:
    found: dict[str, set[str]] = {}
    for path in (SOURCES / "cli").rglob("*.py"):
        texts = {ast.unparse(argument) for argument in _calls(ast.parse(path.read_text("utf-8")))}
        others = {text for text in texts if not re.fullmatch(r"(ExitCode\.[A-Z_]+|\w+\.exit_code)", text)}
        if others:
            found[path.name] = others
    assert found == {
        "main.py": {"app(prog_name='lockstep', standalone_mode=False)", "_print_usage_error(cast('Any', error))"},
        "shell.py": {"ExitCode.UNAVAILABLE if end.exit_code is None else end.exit_code"},
        "train.py": {"code"},
    }


def test_no_class_outside_the_table_has_a_code() -> None:
    for path in SOURCES.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "exit_code" in text else ():
            if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                bases = [ast.unparse(base) for base in node.bases]
                names = [
                    ast.unparse(each) for line in node.body if isinstance(line, ast.Assign) for each in line.targets
                ]
                assert not (any(base.endswith("Error") for base in bases) and "exit_code" in names), (path, node.name)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (InvalidInputError("bad"), ExitCode.INVALID_INPUT, "lockstep: error: bad\n"),
        (UnavailableError("away"), ExitCode.UNAVAILABLE, "lockstep: error: away\n"),
        (JobFailedError("job x failed"), ExitCode.JOB_FAILED, "lockstep: error: job x failed\n"),
        (JobCancelledError("job x"), ExitCode.JOB_CANCELLED, "lockstep: error: job x\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
        (RuntimeError("a fault \x1b]0;x\x07"), ExitCode.INTERNAL, "RuntimeError: a fault �]0;x�\n"),
    ],
)
def test_what_ends_a_command_decides_its_code(
    raised: BaseException,
    code: ExitCode,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_used: str) -> None:
        raise raised

    monkeypatch.setattr(main, "make_app", fail)
    monkeypatch.setattr(sys, "argv", ["lockstep", "jobs"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == code
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("jbs", "No such command 'jbs'. Did you mean 'jobs'?"),
        ("jobs --frmat csv", "No such option"),
        ("jobs --limit x", "--limit"),
        ("describe", "Missing argument 'JOB'"),
        ("-- jbs", "No such command 'jbs'"),
    ],
)
def test_wrong_usage_is_one_line_and_two(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) == 1
