"""The process that runs a job's replicas without any service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.jobs.running.orders import SPOOL_VARIABLE, GangOrder, ReplicaOrder
from lockstep.processes import find_marked
from lockstep.runner.local import LOCAL_RUN, LocalRun


@pytest.mark.heavy
def test_where_one_cannot_be_started_those_before_it_do_not_go_on(tmp_path: Path) -> None:
    def replica(role: str, value: str) -> ReplicaOrder:
        return ReplicaOrder(
            name=f"{role}-replica-0",
            role=role,
            index=0,
            job="j",
            command=("-c", "import time; time.sleep(600)"),
            environment={"VALUE": value},
            spool=str(tmp_path / f"spool-{role}"),
            log_url=str(tmp_path / "log"),
        )

    # More than the system gives a program.
    order = GangOrder(gang_id="g", replicas=(replica("master", ""), replica("worker", "x" * 1_000_000)))
    run = LOCAL_RUN.dump_json(LocalRun(order=order, folder=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, "-m", "lockstep.runner.local"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(run + b"\n")
        process.stdin.flush()  # and not closed: nobody asked for an end
        said = process.stderr.read().decode()
        assert process.wait(20) != 0
    assert said.startswith("lockstep: error: worker-replica-0 could not be started: [Errno 7] Argument list too long")
    assert len(said.splitlines()) == 1
    assert find_marked(SPOOL_VARIABLE, accept=lambda mark: mark.startswith(str(tmp_path))) == []
