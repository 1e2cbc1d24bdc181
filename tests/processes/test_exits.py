"""What goes on in the background is finished before a process ends, however it ends; or its end says that it is not."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from lockstep.errors import StorageWriteError
from lockstep.processes import exits

path, outcome, end = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
executor = ThreadPoolExecutor(1)
executor.submit(int).result()  # has its thread started: Python 3.12.1 starts none at the end
done = threading.Event()

def write():
    time.sleep(0.3)
    executor.submit(path.write_text, "written").result()  # refused once Python has ended its pools
    done.set()

def finish():
    if outcome == "fails":
        raise StorageWriteError("the disk is full")
    if outcome == "hangs":
        threading.Event().wait()
    done.wait()

exits.EXIT_TIMEOUT_S = exits.SIGTERM_TIMEOUT_S = 1.0 if outcome == "hangs" else 30.0
threading.Thread(target=write, daemon=True).start()
cancel_exit_hook = exits.finish_at_exit(finish, what="the file")
if outcome == "is taken back":
    cancel_exit_hook()
print("begun", flush=True)
if end == "sys.exit":
    sys.exit(0)
if end == "exception":
    raise RuntimeError("of the script")
if end.startswith("SIG"):
    os.kill(os.getpid(), signal.Signals[end])
"""
ENDS = {"normal": 0, "sys.exit": 0, "exception": 1, "SIGTERM": -signal.SIGTERM, "SIGHUP": -signal.SIGHUP}


def run(tmp_path, outcome, end):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "file"), outcome, end]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("end", ENDS)
def test_what_was_begun_is_finished_however_the_process_ends(tmp_path, end):
    found = run(tmp_path, "works", end)
    assert found.returncode == ENDS[end], found.stderr
    assert (tmp_path / "file").read_text() == "written"
    assert "lockstep" not in found.stderr
    assert ("of the script" in found.stderr) == (end == "exception")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("fails", "the file was not written: the disk is full"),
        ("hangs", "the file was not written: it was not finished"),
    ],
)
def test_what_could_not_be_finished_is_said_and_the_exit_code_is_not_0(tmp_path, end, outcome, said):
    found = run(tmp_path, outcome, end)
    assert found.returncode == (ENDS[end] if end.startswith("SIG") else 73)
    assert [line for line in found.stderr.splitlines() if "lockstep: error" in line] == [
        line for line in found.stderr.splitlines() if said in line
    ]
    assert said in found.stderr


TWO = """
from lockstep.errors import InvalidInputError, StorageWriteError
from lockstep.processes import exits

def fail(error):
    raise error

exits.finish_at_exit(lambda: fail(InvalidInputError("no such step")), what="the first file")
exits.finish_at_exit(lambda: fail(StorageWriteError("the disk is full")), what="the second file")
"""


def test_the_exit_code_is_that_of_the_first_failure():
    found = subprocess.run([sys.executable, "-c", TWO], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 64, found.stderr
    assert len(found.stderr.splitlines()) == 2


def test_what_was_taken_back_is_not_waited_for(tmp_path):
    assert run(tmp_path, "is taken back", "normal").returncode == 0
    assert not (tmp_path / "file").exists()


LATE = """
import atexit, sys, threading
from lockstep.processes import exits

def begin():
    threading.main_thread().join()
    exits.finish_at_exit(lambda: None, what="the file")

exits.finish_at_exit(lambda: None, what="an earlier file")()
if sys.argv[1] == "thread":
    threading.Thread(target=begin).start()
else:
    atexit.register(lambda: exits.finish_at_exit(lambda: None, what="the file"))
"""


@pytest.mark.parametrize("who", ["thread", "atexit"])
def test_what_is_begun_after_the_scripts_end_is_refused_and_the_exit_code_is_not_0(who):
    command = [sys.executable, "-c", LATE, who]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 73, found.stderr
    assert (
        "StorageWriteError: the file cannot be written: the script has ended already; write it before" in found.stderr
    )
