"""The side of a runner's process that an engine holds."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lockstep.clusters.machines.local import MACHINE_VARIABLE
from lockstep.clusters.ray.head import ENGINE_VARIABLE
from lockstep.clusters.runner_process import RunnerProcess, end_leftover_processes
from lockstep.jobs.running.orders import SPOOL_VARIABLE, ReplicaOrder, ReplicaPhase, ReplicaStatus
from lockstep.processes import find_marked
from lockstep.spools import LOG_FOLDER, RUNNER_LOG, STATUS_FILE


def _order(tmp_path: Path, script: str) -> ReplicaOrder:
    (tmp_path / "spool" / "work").mkdir(parents=True)
    return ReplicaOrder(
        name="master-replica-0",
        role="master",
        index=0,
        job="j",
        command=(sys.executable, "-c", script),
        spool=str(tmp_path / "spool"),
        log_url=str(tmp_path / "log"),
    )


def test_a_stop_that_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    before = set(psutil.Process().children())

    def report(status: ReplicaStatus) -> None:
        if status.phase is ReplicaPhase.ENDED:
            (runner_process,) = set(psutil.Process().children()) - before
            # It has gone, but nobody has looked yet: what is written to it now goes nowhere.
            os.waitid(os.P_PID, runner_process.pid, os.WEXITED | os.WNOWAIT)
            runner.stop()

    order = _order(tmp_path, "print('done')")
    runner = RunnerProcess()
    last = runner.run(order, report=report)
    assert last.phase is ReplicaPhase.ENDED
    assert last.end is not None
    assert last.end.exit_code == 0


def test_a_runner_is_none_of_the_engines_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = (ENGINE_VARIABLE, MACHINE_VARIABLE)
    for name in marks:
        monkeypatch.setenv(name, str(tmp_path))
    runner = RunnerProcess()
    marked: list[bool] = []

    def report(status: ReplicaStatus) -> None:
        if status.phase is ReplicaPhase.RUNNING and not marked:
            marked.extend(bool(find_marked(name, accept=lambda mark: mark == str(tmp_path))) for name in marks)
            runner.stop()

    runner.run(_order(tmp_path, "import time; time.sleep(600)"), report=report)
    assert marked == [False, False]


def test_what_a_killed_runner_left_is_ended_though_it_starts_others(tmp_path: Path) -> None:
    order = _order(tmp_path, "")
    script = "(while :; do sleep 600 & sleep 0.002; done) & echo up; wait"
    with subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], SPOOL_VARIABLE: order.spool},
        start_new_session=True,
    ) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"up\n"
        end_leftover_processes(order)
        assert find_marked(SPOOL_VARIABLE, accept=lambda mark: mark == order.spool) == []


@pytest.mark.heavy
def test_a_runner_imports_nothing_from_the_folder_that_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "select", "random", "lockstep"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one that was meant')")
    monkeypatch.chdir(tmp_path)
    last = RunnerProcess().run(_order(tmp_path, "print('done')"), report=lambda _: None)
    assert last.end is not None
    assert last.end.exit_code == 0, last.end


def test_what_is_no_status_is_no_end_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    running = '{"name": "master-replica-0", "phase": "running"}'
    script = f"read order; echo '{running}'; echo noise; printf '{{\"name\": \"mas'; kill -9 $$"  # cut off in a status
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    phases: list[ReplicaPhase] = []
    last = RunnerProcess().run(_order(tmp_path, ""), report=lambda status: phases.append(status.phase))
    assert phases == [ReplicaPhase.RUNNING]
    assert last.end is not None
    assert last.end.problem == "its runner ended too soon (SIGKILL)"


@pytest.mark.heavy
def test_a_killed_runner_leaves_no_files_but_what_waits_for_the_bucket(tmp_path: Path) -> None:
    unsent = tmp_path / "spool" / LOG_FOLDER
    unsent.mkdir(parents=True)
    (tmp_path / "log").write_text("a file, where the bucket should be")
    runner = RunnerProcess()

    def report(status: ReplicaStatus) -> None:
        if status.phase is ReplicaPhase.RUNNING:
            (unsent / "000000000000.jsonl").touch()
            for process in psutil.Process().children():
                if "lockstep.runner" in process.cmdline():
                    process.kill()

    last = runner.run(_order(tmp_path, "import time; time.sleep(600)"), report=report)
    assert last.end is not None
    assert last.end.problem == "its runner ended too soon (SIGKILL)"
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == [LOG_FOLDER, RUNNER_LOG, STATUS_FILE]
