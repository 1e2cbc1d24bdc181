"""A job that is watched by the command line, over a real service and engine: its progress, its metrics, its shells."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.testing.machine import TIMEOUT_S, Machine

PROGRAM = """
import time, lockstep
for step in range(10_000):
    lockstep.report_progress(step=step, num_examples=step * 32, loss=0.9 / (step + 1))
    time.sleep(0.1)
"""
SOURCE = Path(lockstep.__file__).parents[1]


@pytest.fixture(scope="module")
def watched(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "train.py").write_text(PROGRAM)
    config = folder.parent / "config.yaml"
    own = {"env": {"master": {"PYTHONPATH": str(SOURCE)}}}
    config.write_text(json.dumps({"trainingInput": {"enableWebAccess": True, "lockstep": own}}))
    package = ("--package-path", str(folder), "--module-name", "train", "--config", str(config))
    machine.run("submit", "watched", *package, "--async")
    machine.wait("watched", lambda job: bool(job["lockstep"]["progress"] and job["lockstep"]["replicas"][0]["metrics"]))
    return "watched"


def test_its_progress_is_shown(machine: Machine, watched: str) -> None:
    for arguments in (("describe", watched), ("jobs",), ("status",)):
        (line,) = [line for line in machine.run(*arguments).splitlines() if "loss 0." in line]
        assert re.search(r" s ago( \(simulated\))?$", line)


def test_its_metrics_are_shown(machine: Machine, watched: str) -> None:
    def names() -> set[str]:
        with machine.client() as client:
            pages = list(client.metric_pages(watched, query={}))
        return {series["name"] for page in pages for series in page["series"]}

    _until(names, lambda found: "cpuCores" in found)
    out = machine.run("metrics", watched, "--replica", "master-replica-0", "--since", "1h")
    assert "REPLICA" in out
    rows = {line.split()[1]: line for line in out.splitlines()[1:]}
    assert {"cpuCores", "memoryBytes", "step", "program/loss"} <= set(rows)
    assert "MiB" in rows["memoryBytes"]
    lines = [json.loads(line) for line in machine.run("metrics", watched, "--name", "step", "--json").splitlines()]
    assert [line["name"] for line in lines] == ["step"]
    assert "allowed: cpuCores" in machine.run("metrics", watched, "--name", "cpu", code=64)


def _until(look: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def test_a_command_runs_beside_it_and_its_exit_code_comes_back(machine: Machine, watched: str) -> None:
    assert machine.run("exec", watched, "--", "sh", "-c", "cat train.py") == PROGRAM
    process = machine.start("exec", watched, "--", "sh", "-c", "cat >&2; exit 9")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (9, "", "")
    copied = subprocess.run(
        [sys.executable, "-m", "lockstep.cli.main", "exec", watched, "--", "wc", "-c"],
        env=machine.env,
        input=b"x" * 1_000_000,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert copied.stdout == b"1000000\n"
    assert "home started 'wc' in master-replica-0" in machine.run("describe", watched)
    assert "allowed: master-replica-0" in machine.run(
        "exec", watched, "--replica", "worker-replica-0", "--", "ls", code=12
    )


def test_a_terminal_here_is_a_terminal_there(machine: Machine, watched: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 117, 0, 0))
    command = [sys.executable, "-m", "lockstep.cli.main", "exec", watched, "--", "sh"]
    env = {**machine.env, "LINES": "5", "COLUMNS": "40"}  # as a shell exports them, and not what the window is
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.set_blocking(ours, False)
    seen = b""

    def read() -> bytes:
        nonlocal seen
        try:
            seen += os.read(ours, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        return seen

    before = termios.tcgetattr(theirs)
    _until(read, lambda text: b"# " in text or b"$ " in text)
    os.write(ours, b"stty size\r")
    _until(read, lambda text: b"31 117\r\n" in text)
    os.write(ours, b"sleep 600\r")
    _until(read, lambda text: b"sleep 600" in text)
    os.write(ours, b"\x03")
    os.write(ours, b"exit 5\r")
    assert process.wait(TIMEOUT_S) == 5
    assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    os.close(ours)
    os.close(theirs)


def test_it_ends_with_the_job(machine: Machine, watched: str) -> None:
    process = machine.start("exec", watched, "--", "sh", "-c", "echo up; exec sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    machine.run("cancel", watched)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 69
    assert err.startswith("lockstep: error: the ")
    assert "job watched is C" in machine.run("exec", watched, "--", "true", code=16)
