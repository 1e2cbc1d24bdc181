"""`lockstep doctor`: what it prints, its JSON, its exit code, and what the service adds."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.validating import validated
from typer.testing import CliRunner

from lockstep.cli import doctor as command
from lockstep.cli.commands import make_app
from lockstep.doctor import Diagnosis, Finding, Remark, Severity
from lockstep.errors import UnavailableError

TIMEOUT_S = 120
FULL = Finding(check="disk", severity=Severity.ERROR, what="full", received="1", needed="2", remedy="rm x")
SLOW = Finding(check="bytecode", severity=Severity.WARNING, what="slow", received="1", needed="2", remedy="compile")


def run(folder: Path, *arguments: str, code: int, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("KERAS_BACKEND", "XLA_FLAGS", "NPROC")}
    done = subprocess.run(
        [sys.executable, "-m", "lockstep.cli.main", "doctor", *arguments],
        env={**clean, "LOCKSTEP_HOME": str(folder), "JAX_PLATFORMS": "cpu", **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code < 2 else done.stderr


def test_a_fault_is_printed_with_its_remedy_and_decides_the_exit_code(tmp_path: Path) -> None:
    shown = run(tmp_path, "--only", "variables", code=1, KERAS_BACKEND="torch", LOCKSTEP_TOKEN="secret-value")
    assert "error  variables: Keras would not run on JAX" in shown
    assert "mend it:  unset KERAS_BACKEND" in shown
    assert "1 error, 0 warnings, 0 checks passed, 0 do not apply" in shown
    assert "secret-value" not in shown
    shown = run(tmp_path, "--only", "variables", code=0, PYTHONDONTWRITEBYTECODE="1")
    assert "warning  variables: every process of Ray" in shown
    document = validated("doctor", run(tmp_path, "--only", "disk", "--json", code=0))
    assert document.keys() == {"findings", "passed", "skipped"}
    assert "did you mean 'disk'" in run(tmp_path, "--only", "dsik", code=64)


@pytest.mark.heavy  # JAX starts in a process of its own
def test_all_checks_of_this_machine_end(tmp_path: Path) -> None:
    document = json.loads(run(tmp_path, "--json", "--only", "devices", "--only", "versions", code=0))
    seen = {row["check"]: row["text"] for row in document["passed"]}
    assert "JAX finds 1 cpu" in seen["devices"]
    assert "jax " in seen["versions"]


class Fake:
    """A client whose service found something."""

    def __init__(self, found: Diagnosis | None) -> None:
        self._found = found

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def doctor(self) -> dict[str, Any]:
        if self._found is None:
            raise UnavailableError("no service")
        return {"time": "x", "checking": False, **self._found.to_json()}


def test_the_services_faults_are_added_and_shared_ones_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Diagnosis(findings=(FULL,), passed=(Remark(check="kernel", text="a"),))
    there = Diagnosis(findings=(FULL, SLOW), skipped=(Remark(check="drivers", text="no GPU"),))
    monkeypatch.setattr("lockstep.doctor.diagnose", lambda **_: here)
    monkeypatch.setattr(command, "connect", lambda: Fake(there))
    app = make_app("doctor")
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    findings = validated("doctor", done.output)["findings"]
    assert [(row["check"], row["where"]) for row in findings] == [("disk", "here"), ("bytecode", "service")]
    listed = CliRunner().invoke(app, ["doctor", "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(listed.stdout, newline="")))
    assert [(row["result"], row["check"], row["where"]) for row in rows] == [
        ("error", "disk", "here"),
        ("warning", "bytecode", "service"),
        ("passed", "kernel", "here"),
        ("skipped", "drivers", "service"),
    ]
    assert (rows[0]["text"], rows[0]["remedy"], rows[2]["text"]) == (FULL.what, FULL.remedy, "a")
    assert listed.exit_code == 1
    monkeypatch.setattr("lockstep.doctor.diagnose", lambda **_: Diagnosis(findings=(SLOW,)))
    monkeypatch.setattr(command, "connect", lambda: Fake(None))
    assert CliRunner().invoke(app, ["doctor", "--json"]).exit_code == 0, "warnings alone are no failure"
