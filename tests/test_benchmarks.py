"""The benchmarks of the service and of prediction run, and check what they measure."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "service.py"
SERVING = ROOT / "benchmarks" / "serving.py"

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


def test_each_workload_of_the_services_benchmark_runs_in_a_small_size() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--small", "--runs", "1"], capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in (
        "job: first line over HTTP",
        "as `lockstep jobs` asks",
        "jobs a minute",
        "lines a second, read over HTTP",
        "a line's delay, 4 followers",
    ):
        assert row in done.stdout


def test_a_workload_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--cases", "listing,nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--cases: no nothing; allowed: first-line, listing," in done.stderr


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_prediction_server_is_checked_and_measured(tmp_path: Path) -> None:
    chosen = ["--servers=lockstep", "--models=tabular", "--connections=2", "--rounds=1", "--seconds=1"]
    done = subprocess.run(
        [sys.executable, SERVING, *chosen, f"--folder={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| tabular")]
    _, connections, server, speed, *_, errors, memory = (cell.strip() for cell in row.strip("| ").split("|"))
    assert (connections, server, errors) == ("2", "lockstep", "0")
    assert float(speed.replace(",", "")) > 0
    assert float(memory.replace(",", "")) > 0


def test_a_server_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, SERVING, "--servers=lockstep,nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--servers: no nothing; allowed: lockstep, lockstep-service, fastapi," in done.stderr
