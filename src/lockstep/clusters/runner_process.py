"""A replica's runner as a child process: how every engine starts one on the node where the replica is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from pydantic import ValidationError

from lockstep.containers import reap_spool
from lockstep.jobs.running.orders import (
    ORDER,
    SPOOL_VARIABLE,
    STATUS,
    Fault,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
    launched,
)
from lockstep.processes import POLL_S, find_marked
from lockstep.spools import RUNNER_LOG, clear_spool

END_TIMEOUT_S: Final = 10.0
LEFT_S: Final = 15.0
"""How long a runner whose launcher was killed may take beside its program's time of grace."""
ENGINES_OWN: Final = ("RAY_", "OMP_", "LOCKSTEP_ENGINE", "LOCKSTEP_MACHINE")
"""Variables of an engine's processes begin with these."""


@final
class RunnerProcess:
    """Starts ``python -m lockstep.runner`` for an order, hears its reports and passes "stop" on. Thread-safe.

    An order of the same replica that goes on from this one may follow, unless it was stopped.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, order: ReplicaOrder, *, report: Callable[[ReplicaStatus], object]) -> ReplicaStatus:
        """Runs the order to its end. Blocks.

        Args:
            order: what the runner is to do.
            report: called with each status that the runner reports.

        Returns:
            The last status; its phase is ``ended``, whatever happened.
        """
        last = launched(order, now_s=time.time())
        if order.earlier is not None:
            await_left(order)
        with self._lock:
            if self._stopped:
                return ended(last, ProgramEnd(stopped=True, problem="stopped before its program started"))
            try:
                process = self._process = _spawn(order)
            except OSError as error:
                return ended(last, ProgramEnd(problem=f"its runner could not be started: {error}", fault=Fault.MACHINE))
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # within the lock: nothing may be written before the order
                process.stdin.write(ORDER.dump_json(order) + b"\n")
                process.stdin.flush()
        for line in process.stdout:
            with contextlib.suppress(ValidationError):  # one that was killed may have been cut off
                last = STATUS.validate_json(line)
                report(last)
        code = process.wait()
        with self._lock:
            with contextlib.suppress(BrokenPipeError):  # what `stop` wrote when the runner had ended already
                process.stdin.close()
            process.stdout.close()
        if last.phase is ReplicaPhase.ENDED:
            return last
        end_left(order)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ended(last, ProgramEnd(problem=f"its runner ended too soon ({how})", fault=Fault.MACHINE))

    def stop(self) -> None:
        """Asks the runner to stop its program. Idempotent; does not wait."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError, ValueError):  # it has ended
                    self._process.stdin.write(b"stop\n")
                    self._process.stdin.flush()


def ended(status: ReplicaStatus, end: ProgramEnd) -> ReplicaStatus:
    """Returns a status that says that the replica ended now, in this way."""
    return replace(status, phase=ReplicaPhase.ENDED, ended_time_s=time.time(), end=end)


def _spawn(order: ReplicaOrder) -> subprocess.Popen[bytes]:
    spool = Path(order.spool)
    spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The engine's variables, its token's place among them, are not the runner's business; and whoever ends an engine's
    # processes by their mark would end the runner before it has ended its program.
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENGINES_OWN)}
    env[SPOOL_VARIABLE] = order.spool
    with (spool / RUNNER_LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lockstep.runner"],  # -P: the working folder is not a place to import from
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def end_left(order: ReplicaOrder) -> None:
    """Ends what a runner that was killed left of its program: processes with the replica's mark, and its container.

    Of its files, only what has to reach the bucket stays.
    """
    _end_marked(order.spool)
    if order.container is not None:
        reap_spool(order.spool)
    clear_spool(Path(order.spool))


def await_left(order: ReplicaOrder) -> None:
    """Waits for the end of what runs still of a replica's launch before, and ends it when its time is over.

    A runner whose launcher was killed gives its program the time of grace, and keeps its log.
    """
    deadline = time.monotonic() + order.grace_s + LEFT_S
    while find_marked(SPOOL_VARIABLE, accept=lambda spool: spool == order.spool) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    end_left(order)


def _end_marked(spool: str) -> None:
    deadline = time.monotonic() + END_TIMEOUT_S
    # More than once: what is about to die may still have started another.
    while left := find_marked(SPOOL_VARIABLE, accept=lambda mark: mark == spool):
        if time.monotonic() > deadline:
            return
        for process in left:
            process.send(signal.SIGKILL)
        time.sleep(POLL_S)
