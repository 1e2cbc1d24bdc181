"""The tests run where their parent ignores signals: in a background shell, under nohup."""

import signal
import subprocess
import sys
from pathlib import Path

TESTED = "tests/cli/test_data_pack.py::test_an_interrupted_run_goes_on"


def ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_programs_are_interrupted_although_the_parent_ignores_it() -> None:
    folder = Path(__file__).parent.parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTED]
    done = subprocess.run(command, cwd=folder, preexec_fn=ignore, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout
