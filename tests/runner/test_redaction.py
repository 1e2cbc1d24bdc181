"""Secrets in what a program prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.runner.test_runner_process import _log, _order, _run

from lockstep.runner.logs import LINE_BYTES, LineSplitter
from lockstep.runner.redaction import Redactor

SECRET = "correct horse battery"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a correct horse battery b\n", ["a *** b"]),
        (b"correct horse batterycorrect horse battery\n", ["******"]),
        (b"correct horse\n battery\n", ["correct horse", " battery"]),
        (b"x\rcorrect horse battery\r\n", ["***"]),
        (b"correct horse battery", ["***"]),
    ],
    ids=["within", "twice", "taken-apart", "carriage-return", "no-line-feed"],
)
def test_a_line_shows_stars(data: bytes, expected: list[str]) -> None:
    splitter = LineSplitter(Redactor([SECRET]))
    assert [*splitter.feed(data), *splitter.finish()] == expected


def test_one_secret_in_another_leaves_nothing_of_the_longer_one() -> None:
    assert Redactor(["password", "password-of-all"]).redact_text("password-of-all password") == "*** ***"


def test_each_line_of_a_key_is_taken_out_and_its_braces_stay() -> None:
    redactor = Redactor(['{\n  "private_key": "abcdefgh"\n}'])
    assert redactor.redact_text('{ x "private_key": "abcdefgh" }') == "{ x *** }"


@pytest.mark.parametrize("chunk", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("before", [0, LINE_BYTES - 5, LINE_BYTES, 3 * LINE_BYTES - 10])
def test_neither_a_cut_line_nor_how_it_comes_shows_a_part(before: int, chunk: int) -> None:
    if chunk == 1 and before:
        before, extra = LINE_BYTES - 5, 60
    else:
        extra = LINE_BYTES
    data = b"." * before + SECRET.encode() + b"." * extra
    splitter = LineSplitter(Redactor([SECRET]))
    shown = "".join(
        text for start in range(0, len(data), chunk) for text in splitter.feed(data[start : start + chunk])
    ) + "".join(splitter.finish())
    assert shown == "." * before + "***" + "." * extra


def test_a_secret_at_the_end_of_what_came_is_whole_before_it_is_shown() -> None:
    secret = "correct-horse-battery-staple." * 10
    splitter = LineSplitter(Redactor([secret]))
    data = b"." * (LINE_BYTES - 100) + secret.encode() * 2
    shown = "".join([*splitter.feed(data[:-1]), *splitter.feed(data[-1:]), *splitter.finish()])
    assert shown == "." * (LINE_BYTES - 100) + "***" * 2


def test_a_program_has_its_secrets_and_nothing_keeps_them(tmp_path: Path) -> None:
    script = (
        "import json, os, sys; print('it is', os.environ['PASSWORD']);"
        "print(json.dumps(sorted(os.environ)), os.environ['PASSWORD'] * 2, file=sys.stderr);"
        "raise SystemExit('failed with ' + os.environ['PASSWORD'])"
    )
    status = _run(_order(tmp_path, sys.executable, "-c", script, secrets={"PASSWORD": SECRET}))
    assert status.end is not None
    assert status.end.exit_code == 1
    texts = [str(entry["text"]) for entry in _log(tmp_path)]
    assert "it is ***" in texts
    assert "failed with ***" in texts
    assert SECRET not in json.dumps([status.end.tail, status.end.problem])
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []


def test_what_keeps_a_program_from_starting_shows_no_secret(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, f"/no/{SECRET}", secrets={"PASSWORD": SECRET}))
    assert status.end is not None
    assert "/no/***" in (status.end.problem or "")
    assert not any(SECRET in str(entry["text"]) for entry in _log(tmp_path))


def test_an_order_shows_no_secret_when_it_is_printed(tmp_path: Path) -> None:
    assert SECRET not in repr(_order(tmp_path, "x", secrets={"PASSWORD": SECRET}))
