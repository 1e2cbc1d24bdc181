"""Examines the service's own machine, in a process of its own, and keeps the result for a minute.

The checks may start programs and wait for disks, so they run neither in the service's process nor in the threads that
answer requests.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lockstep.doctor import Diagnosis, Finding, Severity, Surroundings

LOGGER: Final = logging.getLogger(__name__)

KEPT_S: Final = 60.0
"""How long a result is kept, in seconds."""
LIMIT_S: Final = 75.0
"""How long the process with the checks may take, in seconds."""

Examine = Callable[[Surroundings], Diagnosis]


@final
@dataclass(frozen=True, kw_only=True)
class Examined:
    """The latest result.

    Attributes:
        diagnosis: the result; None if no examination has ended yet.
        time_s: when it ended, in seconds since 1970 UTC; None likewise.
        is_running: whether a newer examination runs.
    """

    diagnosis: Diagnosis | None
    time_s: float | None
    is_running: bool


@final
class Checkup:
    """Examines the machine when somebody asks, at most once a minute. Thread-safe.

    Args:
        examine: examines the machine; blocks.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, *, examine: Examine | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._examine = examine or examine_in_process
        self._clock = clock
        self._lock = threading.Lock()
        self._latest = Examined(diagnosis=None, time_s=None, is_running=False)
        self._ended_s = 0.0
        self._ended = threading.Event()

    def latest(self, surroundings: Surroundings, *, also: Callable[[], Sequence[Finding]], wait_s: float) -> Examined:
        """Returns the latest result. If it is older than a minute, starts an examination, and waits for it a little.

        Blocks only the caller that starts one. The others get what is known.

        Args:
            surroundings: what the checks look at.
            also: finds further faults in the service's own process; called in a thread of its own.
            wait_s: how long to wait for a new result, in seconds.
        """
        with self._lock:
            is_fresh = self._latest.diagnosis is not None and self._clock() - self._ended_s < KEPT_S
            if is_fresh or self._latest.is_running:
                return self._latest
            self._latest = replace(self._latest, is_running=True)
            self._ended.clear()
            threading.Thread(target=self._run, args=(surroundings, also), name="checkup", daemon=True).start()
        self._ended.wait(wait_s)
        with self._lock:
            return self._latest

    def _run(self, surroundings: Surroundings, also: Callable[[], Sequence[Finding]]) -> None:
        try:
            found = self._examine(surroundings)
            findings = sorted((*found.findings, *also()), key=lambda finding: finding.severity is not Severity.ERROR)
            diagnosis = replace(found, findings=tuple(findings))
        except Exception as problem:  # whatever it is, the next request tries again
            LOGGER.exception("the checks of this machine failed")
            diagnosis = Diagnosis(findings=(_failure(f"{type(problem).__name__}: {problem}"),))
        with self._lock:
            self._latest = Examined(diagnosis=diagnosis, time_s=time.time(), is_running=False)
            self._ended_s = self._clock()
            self._ended.set()


def examine_in_process(surroundings: Surroundings) -> Diagnosis:
    """Runs the checks in a process of their own. Blocks for at most `LIMIT_S` and little longer.

    The process ends when this one ends.

    Args:
        surroundings: what the checks look at.
    """
    command = [sys.executable, "-P", "-m", "lockstep.doctor"]
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps(surroundings.to_json()).encode() + b"\n")
            process.stdin.flush()
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return Diagnosis(findings=(_failure(f"they did not end within {LIMIT_S:.0f} s"),))
        output.seek(0)
        data = output.read()
    if code != 0:
        return Diagnosis(findings=(_failure(f"their process ended with exit code {code}"),))
    return Diagnosis.from_json(json.loads(data))


def _failure(text: str) -> Finding:
    return Finding(
        check="doctor",
        severity=Severity.ERROR,
        what="the checks of the service's machine failed",
        received=text,
        needed="checks that end",
        remedy="lockstep doctor",
    )
