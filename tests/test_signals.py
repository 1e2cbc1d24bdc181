"""The tests run where their parent ignores signals: in a background shell, under nohup."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTED = "tests/cli/test_data_pack.py::test_an_interrupted_run_goes_on"


@pytest.mark.heavy
def test_programs_are_interrupted_although_the_parent_ignores_it() -> None:
    folder = Path(__file__).parent.parent
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTED]
    command = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *tests]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout
