"""Runs a replica's runner as a child process; every engine starts runners this way, on the replica's node."""

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
from lockstep.heartbeat import ProfileRequest
from lockstep.jobs.running.orders import (
    ORDER,
    SPOOL_VARIABLE,
    STATUS,
    Fault,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
    initial_status,
)
from lockstep.processes import POLL_S, find_marked
from lockstep.spools import RUNNER_LOG, clear_spool

END_TIMEOUT_S: Final = 10.0
LEFT_S: Final = 15.0
"""How long a runner whose launcher was killed may run in addition to its program's grace period."""
ENGINES_OWN: Final = ("RAY_", "OMP_", "LOCKSTEP_ENGINE", "LOCKSTEP_MACHINE")
"""Prefixes of the environment variables of an engine's processes."""


@final
class RunnerProcess:
    """Starts ``python -m lockstep.runner`` for an order, receives its reports and forwards "stop" to it. Thread-safe.

    Unless it was stopped, a later order that continues the same replica may be run with the same object.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, order: ReplicaOrder, *, report: Callable[[ReplicaStatus], object]) -> ReplicaStatus:
        """Runs an order to its end. Blocks.

        Args:
            order: the order for the runner.
            report: called with each status that the runner reports.

        Returns:
            The last status. Its phase is always ``ended``.
        """
        last = initial_status(order, now_s=time.time())
        if order.earlier is not None:
            await_leftover_processes(order)
        with self._lock:
            if self._stopped:
                return ended(last, ProgramEnd(stopped=True, problem="stopped before its program started"))
            try:
                process = self._process = _spawn(order)
            except OSError as error:
                return ended(last, ProgramEnd(problem=f"its runner could not be started: {error}", fault=Fault.MACHINE))
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # within the lock: the order must be written first
                process.stdin.write(ORDER.dump_json(order) + b"\n")
                process.stdin.flush()
        for line in process.stdout:
            with contextlib.suppress(ValidationError):  # a killed runner's last line may be cut off
                last = STATUS.validate_json(line)
                report(last)
        code = process.wait()
        with self._lock:
            with contextlib.suppress(BrokenPipeError):  # `stop` may have written after the runner ended
                process.stdin.close()
            process.stdout.close()
        if last.phase is ReplicaPhase.ENDED:
            return last
        end_leftover_processes(order)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ended(last, ProgramEnd(problem=f"its runner ended too soon ({how})", fault=Fault.MACHINE))

    def stop(self) -> None:
        """Asks the runner to stop its program. Idempotent; does not wait."""
        with self._lock:
            self._stopped = True
            self._tell(b"stop")

    def request_profile(self, request: ProfileRequest) -> bool:
        """Passes a request for a profile on. Returns whether the runner runs; does not wait for the profile."""
        with self._lock:
            return self._tell(request.to_bytes())

    def _tell(self, line: bytes) -> bool:
        """Writes a line to the runner, if it runs. The lock is held."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has ended
            return False
        return True


def ended(status: ReplicaStatus, end: ProgramEnd) -> ReplicaStatus:
    """Returns a copy of a status in which the replica has ended now, with the given end."""
    return replace(status, phase=ReplicaPhase.ENDED, ended_time_s=time.time(), end=end)


def _spawn(order: ReplicaOrder) -> subprocess.Popen[bytes]:
    spool = Path(order.spool)
    spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The runner does not get the engine's variables: one of them is the path of the engine's token, and the marks among
    # them would let `end_processes` kill the runner before it has ended its program.
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENGINES_OWN)}
    env[SPOOL_VARIABLE] = order.spool
    with (spool / RUNNER_LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lockstep.runner"],  # -P: do not import from the working folder
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def end_leftover_processes(order: ReplicaOrder) -> None:
    """Ends what a killed runner left running: processes that carry the replica's mark, and its container.

    Deletes its files except those that still have to be uploaded to the bucket.
    """
    _end_marked(order.spool)
    if order.container is not None:
        reap_spool(order.spool)
    clear_spool(Path(order.spool))


def await_leftover_processes(order: ReplicaOrder) -> None:
    """Waits until the processes of a replica's earlier launch have ended, and ends them after a timeout.

    A runner whose launcher was killed gives its program the grace period, and saves its log.
    """
    deadline = time.monotonic() + order.grace_s + LEFT_S
    while find_marked(SPOOL_VARIABLE, accept=lambda spool: spool == order.spool) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    end_leftover_processes(order)


def _end_marked(spool: str) -> None:
    deadline = time.monotonic() + END_TIMEOUT_S
    # Repeated: a process may start another one just before it is killed.
    while left := find_marked(SPOOL_VARIABLE, accept=lambda mark: mark == spool):
        if time.monotonic() > deadline:
            return
        for process in left:
            process.send(signal.SIGKILL)
        time.sleep(POLL_S)
