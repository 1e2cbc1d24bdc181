"""Secrets through the real command line, service and engine: the program has them, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
from tests.cli.test_job_flags import parsed

from lockstep.cli.job_flags import merge_flags
from lockstep.jobs.input.documents import parse_training_input
from lockstep.testing.machine import Machine

SECRET = "correct-horse-battery"
PROGRAM = """
import os, pathlib, sys, time
print("it is", os.environ["PASSWORD"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
sys.exit("ends with " + os.environ["PASSWORD"])
"""


def test_flags_add_to_the_secrets_of_the_file() -> None:
    document = {"trainingInput": {"lockstep": {"secrets": {"A": "a", "B": "b"}}}}
    asked = parse_training_input(document, source="c.yaml")
    merged = merge_flags(asked, parsed("--secret", "B=other", "--secret", "C=c"))
    assert merged["lockstep"]["secrets"] == {"A": "a", "B": "other", "C": "c"}


def _holding(*folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_jobs_secret_is_in_no_file_and_no_command_line(machine: Machine, tmp_path: Path) -> None:
    code = tmp_path / "program"
    code.mkdir()
    (code / "tell.py").write_text(PROGRAM)
    value = tmp_path / "value"
    value.write_text(SECRET + "\n")
    machine.run("secrets", "set", "password", "--file", str(value))
    value.unlink()
    assert "password" in machine.run("secrets", "list")
    asked = ("--package-path", str(code), "--module-name", "tell", "--secret", "PASSWORD=password")
    shown = [machine.run("submit", "secretive", *asked, "--dry-run", "--", str(tmp_path / "go"))]
    assert "PASSWORD=(secret password)" in shown[0]
    machine.run("submit", "secretive", *asked, "--async", "--", str(tmp_path / "go"))
    machine.wait("secretive", lambda job: job["state"] == "RUNNING")
    engine = Path(json.loads((machine.home.engine / "head.json").read_text())["folder"])
    assert _holding(machine.home.path, engine) == []
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(SECRET in part for line in lines for part in line)
    (tmp_path / "go").touch()
    ended = machine.wait("secretive", lambda job: job["state"] == "FAILED")
    shown += [json.dumps(ended), machine.run("describe", "secretive"), machine.run("logs", "secretive")]
    assert "it is ***" in shown[-1]
    assert "ends with ***" in ended["errorMessage"]
    assert not any(SECRET in text for text in shown)
    assert _holding(machine.home.path, engine) == []
    machine.run("secrets", "rm", "password")
    assert "no secret 'password'" in machine.run("submit", "late", *asked, "--async", "--", "x", code=64)
