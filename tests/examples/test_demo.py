"""The demo, as a person runs it: twice in a row, as `make demo` twice does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "LOCKSTEP_HOME"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_demo_runs_twice_and_leaves_nothing_running(tmp_path: Path) -> None:
    for _ in range(2):
        out = _run(tmp_path / "demo")
        accuracy = re.search(r"test accuracy ([\d.]+)", out)
        assert accuracy is not None
        assert float(accuracy[1]) >= 0.86
        assert "SUCCEEDED (simulated)" in out
        assert "list price, simulated machines, nothing owed" in out
        assert out.count(" right") >= 7
        assert out.count(" right") + out.count(" wrong") == 10
        assert not [p for p in psutil.process_iter() if any(str(tmp_path) in word for word in _words(p))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
