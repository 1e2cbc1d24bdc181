"""`lockstep migrate` on the command line: the diff that it prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.cli import console
from lockstep.cli.app import app

SCRIPT = 'import tensorflow as tf\nname = "\u200f\u05e9\x0c \x85 y"\n\x0c\ndef f():\n\treturn tf.reduce_sum([1])'


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_diff_that_goes_to_a_file_can_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newline: str, is_absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("job/train.py")
    script.parent.mkdir()
    script.write_text(SCRIPT, "utf-8", newline=newline)
    before = script.read_bytes()
    given = str(script.parent.absolute() if is_absolute else script.parent)
    diff = CliRunner().invoke(app, ["migrate", given], catch_exceptions=False).stdout_bytes
    CliRunner().invoke(app, ["migrate", given, "--write"], catch_exceptions=False)
    migrated = script.read_bytes()
    script.write_bytes(before)
    subprocess.run(["git", "apply"], input=diff, check=True, timeout=60)
    assert script.read_bytes() == migrated != before


def test_a_script_does_not_drive_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text('import tensorflow as tf\nx = "\x1b]0;title\x07\u202e"  # evil\ny = tf.constant(1)\n', "utf-8")
    monkeypatch.setattr(console.OUTPUT, "_force_terminal", True)
    shown = CliRunner().invoke(app, ["migrate", str(script)], catch_exceptions=False, color=True).stdout
    assert "\ufffd]0;title\ufffd\ufffd" in shown
    assert "\x1b" not in shown
