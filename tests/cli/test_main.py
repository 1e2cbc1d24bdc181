"""How the command line ends: what it says, and its exit code."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 60


def test_a_question_that_is_not_answered_ends_it_in_silence(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockstep.cli.main", "bucket", "rm", "--recursive", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    seen = b""
    while not seen.endswith(b"[y/N]:"):
        read = process.stderr.read(1)
        assert read, seen
        seen += read
    os.write(ours, b"\x04")  # Ctrl-D
    _, err = process.communicate(timeout=TIMEOUT_S)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, err.strip()) == (130, b"")
    assert (tmp_path / "data" / "x").exists()


def test_a_reader_that_goes_away_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lockstep.cli.main", "--version"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_value_that_is_not_allowed_is_said_in_words_of_ours() -> None:
    command = [sys.executable, "-m", "lockstep.cli.main", "jobs", "--format", "xml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    said = "lockstep: error: Invalid value for '--format': 'xml' is not one of 'table', 'json', 'csv'"
    assert done.stderr == f"{said}; see `lockstep jobs --help`\n"


def test_a_command_imports_no_other_one() -> None:
    wanted = ("lockstep.cli.describe", "lockstep.cli.submit", "jax")
    program = (
        "import sys; from lockstep.cli.commands import make_app; make_app('describe');"
        f"print(*sorted(name for name in sys.modules if name in {wanted}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["lockstep.cli.describe"]
