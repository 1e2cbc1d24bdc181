"""Ray's head dies under a service that was started as `lockstep up` starts it, with process 1 as its parent."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from lockstep.clusters.ray.driver_process import DRIVER_VARIABLE
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.home import Home
from lockstep.processes import find_marked
from lockstep.runner.run import USAGE_INTERVAL_S
from lockstep.service.process.keeper import end_keeper
from lockstep.testing.foreign_ray import ForeignRay
from lockstep.testing.machine import Machine

JOBS: Final = ("first", "second", "third")
WELL_S: Final = 20.0
"""So soon after the head's death all is well again."""
LIMIT_S: Final = 150.0
"""So long a test waits for it on a machine that is busy with other things."""
DEAD_S: Final = 3.0
"""So long the service may name a process that is gone."""
START_S: Final = 5.0
"""So long a program's Python may take to come up."""
SECOND_S: Final = 1.0
"""So exactly a bill says how long a program ran, by what is known of it."""
PROGRAM: Final = """
import pathlib, sys, time
starts = pathlib.Path(sys.argv[1])
with starts.open("a+") as file:
    file.seek(0)
    number = len(file.readlines())
    file.write("started\\n")
with open(f"{starts}.{number}", "w") as beats:
    while True:
        print(time.time(), file=beats, flush=True)
        time.sleep(0.05)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    (made.code / "counted.py").write_text(PROGRAM)
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []


def start_jobs(machine: Machine, folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text("trainingInput: {lockstep: {restartPolicy: {maxRestarts: 100}}}")
    package = ("--package-path", str(machine.code), "--module-name", "counted")
    for job in JOBS:
        machine.run("submit", job, *package, f"--config={config}", "--async", "--", str(folder / job))


def orphan(machine: Machine) -> int:
    """Leaves the service without its keeper, so that it has the parent of all orphans; returns its process id."""
    keeper = psutil.Process(machine.service_pid()).ppid()
    end_keeper(machine.home)
    pid = machine.service_pid()
    assert psutil.Process(pid).ppid() not in (keeper, os.getpid())
    return pid


def head_pid(home: Home) -> int:
    record = EmbeddedHead(home).find()
    assert record is not None
    return record.pid


def kill_leader(head: psutil.Process) -> None:
    head.kill()


def kill_part(name: str) -> Callable[[psutil.Process], None]:
    """Kills one of the head's processes, which ends the others itself."""

    def kill(head: psutil.Process) -> None:
        next(process for process in head.children(recursive=True) if process.name() == name).kill()

    return kill


def kill_all(head: psutil.Process) -> None:
    for process in [head, *head.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it went with another one
            process.kill()


def await_well(machine: Machine, *, num_restarts: int, since_s: float) -> float:
    """Waits until all jobs run in a start of their own each; returns how many seconds after a moment that was."""
    service, named_dead_since_s = machine.service_pid(), None
    while True:
        now_s = time.monotonic() - since_s
        with machine.client() as client:  # it answers at each moment
            said, jobs = client.service(), [client.job(job) for job in JOBS]
        assert said["pid"] == service
        named = re.search(r"pid (\d+)", said["engine"]["engine"])
        if named is not None and not _runs(int(named[1])):
            named_dead_since_s = named_dead_since_s or now_s
            assert now_s - named_dead_since_s < DEAD_S, said
        else:
            named_dead_since_s = None
        if named is not None and not said["problems"] and all(_is_well(job, num_restarts) for job in jobs):
            return now_s
        assert now_s < LIMIT_S, (said, jobs, machine.home.service_log.read_text()[-3000:])
        time.sleep(0.1)


def _is_well(job: dict[str, Any], num_restarts: int) -> bool:
    if job["state"] != "RUNNING" or job["lockstep"].get("numRestarts", 0) != num_restarts:
        return False
    pid = job["lockstep"]["replicas"][0]["pid"]
    return pid is not None and _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_again_and_again(machine: Machine, folder: Path, kills: list[Callable[[psutil.Process], None]]) -> list[float]:
    """Kills the head in each of these ways; returns after how many seconds all was well again, each time."""
    took_s = []
    for number, kill in enumerate(kills, start=1):
        killed_s = time.monotonic()
        kill(psutil.Process(head_pid(machine.home)))
        took_s.append(await_well(machine, num_restarts=number, since_s=killed_s))
        await_programs(folder, number=number)
    return took_s


def await_programs(folder: Path, *, number: int) -> None:
    """Waits until the programs of an attempt have given a sign of life; each was started once an attempt so far."""
    deadline = time.monotonic() + START_S
    for job in JOBS:
        beats = folder / f"{job}.{number}"
        while not (beats.exists() and beats.stat().st_size):
            assert time.monotonic() < deadline, beats
            time.sleep(0.02)
    assert [(folder / job).read_text().count("started") for job in JOBS] == [number + 1] * len(JOBS)


def check_bills(machine: Machine, folder: Path, *, num_attempts: int) -> None:
    """Ends all jobs; each attempt is billed for as long as its program ran, and the attempts add up to the bill."""
    for job in JOBS:
        machine.run("cancel", job)
    for job in JOBS:
        found = machine.wait(job, lambda job: job["state"] == "CANCELLED")
        attempts, bill = found["lockstep"]["attempts"], found["lockstep"]["bill"]
        assert [attempt["attempt"] for attempt in attempts] == list(range(num_attempts))
        for number, attempt in enumerate(attempts):
            ran = [float(line) for line in folder.joinpath(f"{job}.{number}").read_text().split()]
            # On a busy machine the signs come late, and so does each process that the end is told to: three in a row.
            late_s = max((after - before for before, after in itertools.pairwise(ran)), default=0.0)
            _check_attempt(attempt, first_s=ran[0], last_s=ran[-1], slack_s=SECOND_S + 3 * late_s)
        for name, decimals in (("mlUnits", 2), ("costUsd", 4)):
            parts = sum((Decimal(attempt[name]) for attempt in attempts), Decimal(0))
            assert abs(parts - Decimal(bill[name])) <= Decimal("0.5").scaleb(-decimals), (name, attempts, bill)
        with machine.client() as client:
            ends = [event["time"] for event in client.job_events(job) if event["kind"] in ("restarted", "cancelled")]
        assert ends == [attempt["endTime"] for attempt in attempts], "the transitions explain the bill"


def _check_attempt(attempt: dict[str, Any], *, first_s: float, last_s: float, slack_s: float) -> None:
    """Compares an attempt with the first and the last sign of life that its program wrote itself."""
    said = (attempt, first_s, last_s)
    start_s, end_s = (datetime.fromisoformat(attempt[name]).timestamp() for name in ("startTime", "endTime"))
    assert abs(float(attempt["machineSeconds"]) - (end_s - start_s)) <= 0.002, said
    assert -slack_s <= first_s - start_s <= START_S, said
    if attempt["latestEndTime"] is None:  # its runner saw it end
        assert abs(end_s - last_s) <= slack_s, said
        return
    latest_s = datetime.fromisoformat(attempt["latestEndTime"]).timestamp()
    assert last_s - USAGE_INTERVAL_S - slack_s <= end_s <= last_s + slack_s, said
    assert latest_s >= last_s, said


@pytest.mark.timeout(500)
@pytest.mark.heavy
def test_a_service_with_process_1_as_its_parent_outlives_the_engines_head(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "JOBS", JOBS[:1])  # three of them, and ten deaths, are in `make test-all`
    machine.run("up", "--max-running-jobs", "3")
    start_jobs(machine, tmp_path)
    pid = orphan(machine)
    await_well(machine, num_restarts=0, since_s=time.monotonic())
    await_programs(tmp_path, number=0)
    kill_again_and_again(machine, tmp_path, [kill_leader])
    check_bills(machine, tmp_path, num_attempts=2)
    assert machine.service_pid() == pid


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "orphaned"])
def test_the_head_is_killed_ten_times_under_three_jobs(machine: Machine, tmp_path: Path, is_kept: bool) -> None:
    machine.run("up", "--max-running-jobs", "3")
    start_jobs(machine, tmp_path)
    pid = machine.service_pid() if is_kept else orphan(machine)
    await_well(machine, num_restarts=0, since_s=time.monotonic())
    await_programs(tmp_path, number=0)
    kinds = [kill_leader, kill_part("gcs_server"), kill_part("raylet"), kill_all, kill_leader]
    took_s = kill_again_and_again(machine, tmp_path, 2 * kinds)
    check_bills(machine, tmp_path, num_attempts=11)
    assert machine.service_pid() == pid
    print("well again after", ", ".join(f"{seconds:.1f} s" for seconds in took_s))
    assert max(took_s) < WELL_S, took_s


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_a_head_that_is_killed_while_it_comes_up_again_is_replaced_too(machine: Machine, tmp_path: Path) -> None:
    machine.run("up", "--max-running-jobs", "3")
    start_jobs(machine, tmp_path)
    pid = orphan(machine)
    await_well(machine, num_restarts=0, since_s=time.monotonic())
    for wait_s in (0.3, 1.5, 3.0, 4.0):  # while it starts, while the driver connects, and when it just has
        old = head_pid(machine.home)
        os.kill(old, signal.SIGKILL)
        deadline = time.monotonic() + WELL_S
        while (new := _started_head(machine.home)) in (None, old):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert new is not None
        time.sleep(wait_s)
        os.kill(new, signal.SIGKILL)
        killed_s = time.monotonic()
        num_restarts = _settled_restarts(machine, since_s=killed_s)
        assert time.monotonic() - killed_s < 2 * WELL_S
        starts = [(tmp_path / job).read_text().count("started") for job in JOBS]
        assert all(number <= 1 + most for number, most in zip(starts, num_restarts, strict=True)), starts
    assert machine.service_pid() == pid


def _started_head(home: Home) -> int | None:
    """Returns the head's process, whether it answers already or not."""
    record = EmbeddedHead(home)._read()
    return None if record is None or record.process is None else record.process.pid


def _settled_restarts(machine: Machine, *, since_s: float) -> list[int]:
    """Waits until all jobs run on a head that runs; returns how often each was started again."""
    while True:
        with machine.client() as client:
            said, jobs = client.service(), [client.job(job) for job in JOBS]
        counts = [job["lockstep"].get("numRestarts", 0) for job in jobs]
        is_up = EmbeddedHead(machine.home).find() is not None and not said["problems"]
        if is_up and all(_is_well(job, count) for job, count in zip(jobs, counts, strict=True)):
            return counts
        assert time.monotonic() - since_s < LIMIT_S, (said, jobs)
        time.sleep(0.1)


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_an_attached_ray_that_dies_and_comes_back_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ForeignRay() as ray:
        for name, value in ray.environment.items():
            monkeypatch.setenv(name, value)
        ray.start(cpus=8)
        machine = Machine(tmp_path)
        machine.run("cluster", "attach", ray.address)
        machine.run("up")
        pid = orphan(machine)
        try:
            for number in range(2):
                machine.run("submit", f"job_{number}", *machine.package(), "--async", "--", "3", "0.1")
                machine.wait(f"job_{number}", lambda job: job["state"] == "SUCCEEDED", timeout_s=120.0)
                ray.end("head")
                (driver,) = _drivers(machine.home)
                _await_problems(machine, ["engine"])
                ray.start(cpus=8, port=int(ray.address.rpartition(":")[2]))
                assert driver.wait(timeout_s=120.0), "a connection to what is no more is not kept"
                _await_problems(machine, [])
            machine.run("submit", "last", *machine.package(), "--async", "--", "3", "0.1")
            machine.wait("last", lambda job: job["state"] == "SUCCEEDED", timeout_s=120.0)
            assert machine.service_pid() == pid
        finally:
            machine.run("down", "--cancel")
        assert machine.processes() == []


def _drivers(home: Home) -> list[Any]:
    mark = os.path.realpath(home.engine)
    return find_marked(DRIVER_VARIABLE, accept=lambda value: value == mark)


def _await_problems(machine: Machine, parts: list[str]) -> None:
    """Waits until exactly these parts have a problem."""
    deadline = time.monotonic() + 120.0
    while True:
        with machine.client() as client:
            found = client.service()["problems"]
        if [problem["part"] for problem in found] == parts:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
