"""The service's benchmark runs, and checks what it measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "service.py"

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
