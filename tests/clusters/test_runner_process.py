"""The side of a runner's process that an engine holds."""

import os
import sys
from pathlib import Path

import psutil

from lockstep.clusters.runner_process import RunnerProcess
from lockstep.jobs.orders import ReplicaOrder, ReplicaPhase, ReplicaStatus


def test_a_stop_that_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    before = set(psutil.Process().children())

    def report(status: ReplicaStatus) -> None:
        if status.phase is ReplicaPhase.ENDED:
            (runner_process,) = set(psutil.Process().children()) - before
            # It has gone, but nobody has looked yet: what is written to it now goes nowhere.
            os.waitid(os.P_PID, runner_process.pid, os.WEXITED | os.WNOWAIT)
            runner.stop()

    (tmp_path / "spool" / "work").mkdir(parents=True)
    order = ReplicaOrder(
        name="master-replica-0",
        role="master",
        index=0,
        job="j",
        command=(sys.executable, "-c", "print('done')"),
        spool=str(tmp_path / "spool"),
        log_url=str(tmp_path / "log"),
    )
    runner = RunnerProcess()
    last = runner.run(order, report=report)
    assert last.phase is ReplicaPhase.ENDED
    assert last.end is not None
    assert last.end.exit_code == 0
