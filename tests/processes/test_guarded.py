"""Programs under a guardian: nothing of them outlives whoever started them, however that ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.waiting import wait_until

from lockstep.errors import EngineError, InvalidInputError
from lockstep.processes import find_marked
from lockstep.processes.guarded import GuardedProcesses
from lockstep.processes.guardian import GuardedProgram

TIMEOUT_S = 30.0
MARK = "LOCKSTEP_TEST_GUARDED"
WAIT = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"
DETACHING = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAIT!r}], start_new_session=True); {WAIT}"
)
OWNER = """
import os, sys, time
from pathlib import Path
from lockstep.processes.guarded import GuardedProcesses
from lockstep.processes.guardian import GuardedProgram
programs = [
    GuardedProgram(name=f"program {number}", command=(sys.executable, "-c", code), output=sys.argv[1])
    for number, code in enumerate(sys.argv[3:])
]
guarded = GuardedProcesses(programs, cwd=Path.cwd(), grace_s=0.2)
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(600)  # has the pipe open that leads to the guardian
print("ready", flush=True)
time.sleep(600)
"""


def program(name: str, code: str, *, output: Path | None = None) -> GuardedProgram:
    return GuardedProgram(
        name=name, command=(sys.executable, "-c", code), output=None if output is None else str(output)
    )


def marked(mark: str) -> list[int]:
    return [identity.pid for identity in find_marked(MARK, accept=lambda value: value == mark)]


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    assert marked(str(tmp_path)) == []


def start_owner(folder: Path, *codes: str, way: str = "") -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder / "output"), way, *codes],
        env={**os.environ, MARK: str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    return owner


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_all_end_with_the_process_that_started_them(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    """One that is stopped, one that ignores SIGTERM, one that has started another in a session of its own."""
    with start_owner(tmp_path, WAIT, STUBBORN, DETACHING) as owner:
        wait_until(lambda: (tmp_path / "output").read_text().count("up") == 4)
        stopped = next(pid for pid in marked(mark) if psutil.Process(pid).cmdline()[-1] == WAIT)
        os.kill(stopped, signal.SIGSTOP)
        assert len(marked(mark)) == 6  # with the owner and the guardian
        owner.send_signal(number)
    wait_until(lambda: not marked(mark))


def test_a_process_that_the_killed_one_forked_keeps_nothing_alive(tmp_path: Path, mark: str) -> None:
    with start_owner(tmp_path, WAIT, way="fork") as owner:
        forked = psutil.Process(owner.pid).children()
        owner.kill()
        (left,) = [process for process in forked if process.cmdline()[1:3] == ["-c", OWNER]]
        wait_until(lambda: marked(mark) == [left.pid])
        left.kill()
    wait_until(lambda: not marked(mark))


def test_all_end_with_a_guardian_that_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guarded = GuardedProcesses([program(f"worker {number}", WAIT) for number in range(2)], cwd=tmp_path)
    processes = list(guarded.processes.values())
    (guardian,) = [one for one in psutil.Process().children() if "lockstep.processes.guardian" in one.cmdline()]
    guardian.kill()
    assert all(process.wait(timeout_s=TIMEOUT_S) for process in processes)
    assert guarded.wait(timeout_s=TIMEOUT_S)
    assert caplog.messages == ["the guardian of worker 0, worker 1 was lost; the programs are ended"]
    guarded.close()
    with pytest.raises(InvalidInputError, match="allowed: none"):
        guarded.start("worker 0")


def test_what_dies_is_started_again_within_bounds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    programs = [program("worker 0", WAIT), program("worker 1", "raise SystemExit(3)"), program("ps 0", "")]
    guarded = GuardedProcesses(programs, cwd=tmp_path, max_restarts=2)
    wait_until(lambda: guarded.codes == {"worker 1": 3, "ps 0": 0})
    assert guarded.num_starts == {"worker 0": 1, "worker 1": 3, "ps 0": 1}
    guarded.processes["worker 0"].send(signal.SIGKILL)
    assert guarded.wait(timeout_s=TIMEOUT_S)
    assert guarded.codes == {"worker 0": -9, "worker 1": 3, "ps 0": 0}
    guarded.close()
    assert caplog.messages == [
        "worker 1 ended with exit code 3; restarting it: restart 1 of 2",
        "worker 1 ended with exit code 3; restarting it: restart 2 of 2",
        "worker 1 ended with exit code 3; not restarted: all 2 restarts are used",
        "worker 0 was killed by SIGKILL; not restarted: all 2 restarts are used",
    ]


def test_one_that_has_ended_is_started_again_when_asked(tmp_path: Path) -> None:
    output = tmp_path / "output"
    guarded = GuardedProcesses([program("worker 0", WAIT, output=output)], cwd=tmp_path)
    with pytest.raises(InvalidInputError, match="not a program that has ended; received 'worker 0'; allowed: none"):
        guarded.start("worker 0")
    first = guarded.processes["worker 0"]
    wait_until(lambda: output.read_text() == "up\n")
    first.send(signal.SIGKILL)
    assert guarded.wait(timeout_s=TIMEOUT_S)
    guarded.start("worker 0")
    assert guarded.processes["worker 0"] != first
    wait_until(lambda: output.read_text() == "up\nup\n")
    guarded.close()
    guarded.close()
    assert not guarded.processes


def test_nobody_can_be_started_who_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = GuardedProgram(name="worker 0", command=(str(tmp_path / "missing"),))
    guarded = GuardedProcesses([missing], cwd=tmp_path)
    assert guarded.codes == {"worker 0": 1}
    guarded.close()
    assert "worker 0 could not be started: [Errno 2] No such file" in caplog.text


def test_a_guardian_that_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match=r"guardian of the programs has ended|could not be started"):
        GuardedProcesses([program("worker 0", WAIT)], cwd=tmp_path)


def test_lines_arrive_whole_with_their_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys\nfor _ in range(200): print('x' * 50, flush=True)\nprint('end', end='')\nsys.stderr.write('e')"
    guarded = GuardedProcesses([program(f"worker {number}", code) for number in range(2)], cwd=tmp_path)
    assert guarded.wait(timeout_s=TIMEOUT_S)
    guarded.close()
    found = capfd.readouterr()
    expected = [f"worker {number}: {text}" for number in range(2) for text in ["x" * 50] * 200 + ["end"]]
    assert sorted(found.out.splitlines()) == sorted(expected)
    assert sorted(found.err.splitlines()) == ["worker 0: e", "worker 1: e"]
