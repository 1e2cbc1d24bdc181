"""`lockstep local train` as a user has it: real processes, of which none is left, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lockstep.cli.local.train import find_ports
from lockstep.errors import InvalidInputError, PortInUseError

TIMEOUT_S = 30.0
PROGRAM = """
import json, os, pathlib, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
child = subprocess.Popen(["sleep", "600"], start_new_session=True)  # what a program may leave behind
print(json.dumps({"task": task, "pids": [os.getpid(), child.pid], "args": sys.argv[1:], "cwd": os.getcwd(),
                  "model": os.environ.get("AIP_MODEL_DIR"), "own": os.environ.get("SECRET_OF_MINE"),
                  "platforms": os.environ.get("JAX_PLATFORMS"), "cluster": config.get("cluster"),
                  "token": os.environ.get("LOCKSTEP_CLUSTER_TOKEN")}), flush=True)
pathlib.Path(f"started-{task['type']}").touch()
if task["type"] == sys.argv[1]:
    while len(list(pathlib.Path().glob("started-*"))) < len(config.get("cluster", "1")):
        time.sleep(0.01)
    sys.exit(int(sys.argv[2]))
time.sleep(600)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "task.py").write_text(PROGRAM)
    return folder


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(code: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        started.append(_start(code, *arguments))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _start(code: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lockstep.cli.main", "local", "train", "--package-path", str(code)]
    env = {**os.environ, "SECRET_OF_MINE": "x", "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*command, "--module-name", "task", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def distributed(num_workers: int = 1) -> tuple[str, ...]:
    while True:  # ports that nobody had a moment ago, and that the system gives nobody who asks for any
        port = random.randrange(10_000, 30_000)
        with contextlib.suppress(PortInUseError):
            find_ports(port, count=num_workers + 2)
            break
    counts = ("--distributed", "--worker-count", str(num_workers), "--parameter-server-count", "1")
    return (*counts, "--start-port", str(port))


def read_replicas(process: subprocess.Popen[str], count: int) -> dict[str, dict[str, object]]:
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip("\n").split("  ", 1) for _ in range(count)]
    return {name: json.loads(text) for name, text in lines}


def pids(replicas: dict[str, dict[str, object]]) -> list[int]:
    return [int(pid) for replica in replicas.values() for pid in replica["pids"]]  # type: ignore[attr-defined]


def test_one_program_runs_where_its_code_is_as_in_a_job(start: Start, code: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    process = start("--job-dir", out, "--", "master", "0", "--epochs", "2")
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stderr) == (0, "")
    said = json.loads(stdout)
    assert said["args"] == ["master", "0", "--epochs", "2", "--job-dir", out]
    assert (said["model"], said["cwd"], said["cluster"]) == (f"{out}/model", str(code), None)
    assert said["token"] is None
    assert said["own"] is None, "a job would not see it either"
    assert said["platforms"] == "cpu", "which devices there are is whoever's that runs it"
    assert all(is_over(pid) for pid in said["pids"])


def test_programs_have_the_variables_that_the_flag_gives(start: Start) -> None:
    process = start("--env", "SECRET_OF_MINE=a=b,c", "--env", "JAX_PLATFORMS=given", "--", "master", "0")
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stderr) == (0, "")
    said = json.loads(stdout)
    assert (said["own"], said["platforms"]) == ("a=b,c", "given")


def test_the_leaders_success_ends_the_parameter_servers(start: Start) -> None:
    process = start(*distributed(0), "--", "master", "0")
    replicas = read_replicas(process, 2)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert set(replicas) == {"master-replica-0", "ps-replica-0"}
    cluster = replicas["ps-replica-0"]["cluster"]
    assert isinstance(cluster, dict)
    assert {role: len(addresses) for role, addresses in cluster.items()} == {"master": 1, "ps": 1}
    assert replicas["master-replica-0"]["token"] == replicas["ps-replica-0"]["token"]
    assert len(str(replicas["ps-replica-0"]["token"])) == 64
    assert all(is_over(pid) for pid in pids(replicas))


def test_a_failure_ends_all_with_its_code(start: Start) -> None:
    process = start(*distributed(), "--", "worker", "7")
    replicas = read_replicas(process, 3)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 7
    assert "replica worker-replica-0: exit code 7; the others were stopped" in stderr
    assert all(is_over(pid) for pid in pids(replicas))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_no_program_outlives_the_command(start: Start, number: signal.Signals) -> None:
    process = start(*distributed(), "--", "nobody", "0")
    replicas = read_replicas(process, 3)
    process.send_signal(number)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == (130 if number is signal.SIGINT else -number)
    wait_until(lambda: all(is_over(pid) for pid in pids(replicas)))


def test_no_program_outlives_what_runs_it(start: Start) -> None:
    process = start("--", "nobody", "0")
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    (runner,) = psutil.Process(process.pid).children()
    runner.kill()
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 70
    assert "the process that ran the replicas was killed" in stderr
    wait_until(lambda: all(is_over(pid) for pid in said["pids"]))


def test_ports_are_looked_at_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} is in use; choose others with --start-port"):
            find_ports(port, count=1)
    with pytest.raises(
        InvalidInputError, match="--start-port; received 65535; allowed: at most 65533, because 3 consecutive ports"
    ):
        find_ports(65535, count=3)
