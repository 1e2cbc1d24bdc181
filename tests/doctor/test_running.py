"""Checks run at the same time, for a bounded time, and say no secret."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lockstep.doctor import CHECKS, Check, Diagnosis, Finding, Result, Severity, Surroundings, diagnose, run_checks
from lockstep.doctor.findings import error, warning
from lockstep.doctor.programs import ask
from lockstep.errors import CorruptDataError, InvalidInputError, StorageError
from lockstep.home import Home

LIMIT_S = 30.0


def surroundings(tmp_path: Path, **env: str) -> Surroundings:
    return Surroundings(home=Home(path=tmp_path / "home"), env=env)


def finding(**changes: str) -> Finding:
    return error("w", **{"received": "r", "needed": "n", "remedy": "m", **changes})


def test_checks_run_at_the_same_time_and_errors_come_first(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=LIMIT_S)

    def run(result: Result) -> Result:
        together.wait()
        return result

    mild = warning("mild", received=3, needed="n", remedy="m")
    checks = [
        Check(name="first", run=lambda _: run(Result(findings=(mild,)))),
        Check(name="second", run=lambda _: run(Result(findings=(finding(),)))),
        Check(name="third", run=lambda _: run(Result(detail="all is well"))),
        Check(name="fourth", run=lambda _: Result(skipped="no such thing")),
    ]
    found = run_checks(checks, surroundings(tmp_path))
    assert [(each.check, each.severity) for each in found.findings] == [
        ("second", Severity.ERROR),
        ("first", Severity.WARNING),
    ]
    assert found.num_errors == 1
    assert [(each.check, each.text) for each in found.passed] == [("third", "all is well")]
    assert [each.check for each in found.skipped] == ["fourth"]
    assert Diagnosis.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(CorruptDataError, match="KeyError"):
        Diagnosis.from_json({"findings": [{}]})


def test_a_check_that_hangs_or_fails_is_a_finding_and_the_others_are_shown(tmp_path: Path) -> None:
    never = threading.Event()

    def refuse(_: Surroundings) -> Result:
        raise StorageError("the disk is on fire", action="call for help")

    checks = [
        Check(name="hangs", run=lambda _: Result(detail=str(never.wait(LIMIT_S))), limit_s=0.1),
        Check(name="refuses", run=refuse),
        Check(name="breaks", run=lambda _: Result(detail=str(1 / 0))),
        Check(name="works", run=lambda _: Result(detail="fine")),
    ]
    began = time.monotonic()
    found = run_checks(checks, surroundings(tmp_path))
    never.set()
    assert time.monotonic() - began < LIMIT_S
    said = {each.check: each for each in found.findings}
    assert said["hangs"].received == "hangs took longer than 0.1 s"
    assert "on fire" in said["refuses"].received
    assert said["refuses"].remedy == "call for help"
    assert "ZeroDivisionError" in said["breaks"].received
    assert [each.check for each in found.passed] == ["works"]


def test_no_secret_is_said(tmp_path: Path) -> None:
    home = Home(path=tmp_path)
    home.token.write_text("secret-of-the-home\n")
    env = {"LOCKSTEP_TOKEN": "lsk_0123456789", "AWS_SECRET_ACCESS_KEY": "aws-secret", "PGPASSWORD": "hunter22"}
    text = "lsk_0123456789 aws-secret hunter22 secret-of-the-home https://ann:pass@proxy:1/ two\nlines"
    checks = [
        Check(name="a", run=lambda _: Result(findings=(finding(received=text, remedy=text),))),
        Check(name="b", run=lambda _: Result(detail=text)),
        Check(name="c", run=lambda _: Result(skipped=text)),
    ]
    found = run_checks(checks, Surroundings(home=home, env=env))
    said = json.dumps(found.to_json())
    for secret in (*env.values(), "secret-of-the-home", "ann:pass"):
        assert secret not in said
    assert found.passed[0].text == "*** *** *** *** https://***@proxy:1/ two lines"


def test_a_service_runs_the_checks_of_its_machine_alone(tmp_path: Path) -> None:
    checks = [
        Check(name="mine", run=lambda _: Result(detail="x"), for_service=False),
        Check(name="both", run=lambda _: Result(detail="x")),
    ]
    of_service = Surroundings(home=Home(path=tmp_path), of_service=True)
    assert [each.check for each in run_checks(checks, of_service).passed] == ["both"]
    assert {check.name for check in CHECKS if not check.for_service} == {"credentials", "client", "clocks"}


def test_a_name_that_is_no_check_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'disk'"):
        diagnose(only=["dsk"])


def test_a_program_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    assert ask(["no-such-program-here"], env=env) is None
    began = time.monotonic()
    hung = ask(["sh", "-c", "sleep 100 & sleep 100"], env=env, limit_s=0.2)
    assert hung is not None
    assert (hung.code, hung.last_line) == (None, "it did not end in time")
    assert time.monotonic() - began < LIMIT_S
    failed = ask(["sh", "-c", "echo no >&2; exit 3"], env=env)
    assert failed is not None
    assert (failed.code, failed.last_line) == (3, "no")


def test_the_process_of_a_service_ends_with_the_service(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "lockstep.doctor"]
    asked = json.dumps(Surroundings(home=Home(path=tmp_path / "h"), of_service=True).to_json())
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(f"{asked}\n")
    process.stdin.close()
    with process:
        assert process.wait(LIMIT_S) in (0, 1)  # 0 if it was faster than the end of its input
