"""Programs that end with the process that started them, however that process ends."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from lockstep.errors import EngineError, InvalidInputError
from lockstep.processes.exit_codes import describe_exit
from lockstep.processes.guardian import ENDED, STARTED, GuardedProgram, Plan
from lockstep.processes.identities import ProcessIdentity

LOGGER: Final = logging.getLogger(__name__)

GRACE_S: Final = 2.0
START_S: Final = 60.0
"""How long a guardian may take to start all of its programs, in seconds."""
END_S: Final = 30.0
"""How long a guardian may take to end its programs, in addition to their grace period, in seconds."""


@final
class GuardedProcesses:
    """Programs under a guardian: a process that ends them when this process ends, even by SIGKILL.

    Thread-safe.

    Args:
        programs: the programs to start.
        cwd: the working folder of the programs.
        max_restarts: how many restarts there may be, over all programs. A program is restarted when it is killed or
            ends with an exit code other than 0.
        grace_s: the time between SIGTERM and SIGKILL when the programs are ended, in seconds.

    Raises:
        EngineError: the guardian, or a program, did not start in time.
    """

    def __init__(
        self, programs: Sequence[GuardedProgram], *, cwd: Path, max_restarts: int = 0, grace_s: float = GRACE_S
    ) -> None:
        self._max_restarts = max_restarts
        self._grace_s = grace_s
        self._names = [program.name for program in programs]
        self._processes: dict[str, ProcessIdentity] = {}
        self._codes: dict[str, int] = {}
        self._num_starts = dict.fromkeys(self._names, 0)
        self._is_closing = False
        self._is_over = False
        self._changed = threading.Condition()
        events, said = os.pipe()
        # In another session, so that Ctrl-C reaches only this process, which ends the programs as it ends.
        self._guardian = subprocess.Popen(
            [sys.executable, "-P", "-m", "lockstep.processes.guardian", str(said)],
            stdin=subprocess.PIPE,
            bufsize=0,
            pass_fds=[said],
            start_new_session=True,
        )
        os.close(said)
        self._reader = threading.Thread(target=self._read_events, args=(events,), name="guardian", daemon=True)
        self._reader.start()
        plan = Plan(
            programs=tuple(programs), parent=os.getpid(), cwd=str(cwd), max_restarts=max_restarts, grace_s=grace_s
        )
        try:
            self._send_line(plan.to_json())
            self._await_starts()
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> Mapping[str, ProcessIdentity]:
        """The running programs, by name."""
        with self._changed:
            return dict(self._processes)

    @property
    def codes(self) -> Mapping[str, int]:
        """The exit codes of the programs that have ended and are not restarted, by name.

        For a program that a signal ended, it is the negative number of the signal.
        """
        with self._changed:
            return dict(self._codes)

    @property
    def num_starts(self) -> Mapping[str, int]:
        """The number of starts of each program, failed ones included."""
        with self._changed:
            return dict(self._num_starts)

    def start(self, name: str) -> None:
        """Starts a program again that has ended. Blocks until the guardian has started it.

        Args:
            name: the program's name.

        Raises:
            InvalidInputError: no program of this name has ended.
            EngineError: the guardian has ended, or does not start the program in time.
        """
        with self._changed:
            if name not in self._codes:
                raise InvalidInputError(
                    "not a program that has ended", received=name, allowed=sorted(self._codes) or "none"
                )
            before = self._num_starts[name]
        self._send_line(name)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._num_starts[name] > before, START_S)
            if self._num_starts[name] == before:
                raise EngineError(f"{name} could not be restarted")

    def wait(self, names: Collection[str] | None = None, *, timeout_s: float) -> bool:
        """Waits until programs have ended and are not restarted; returns False if the time is up first.

        Args:
            names: the names of the programs; None for all.
            timeout_s: how long to wait, in seconds.
        """
        awaited = set(self._names if names is None else names)
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over or self._codes.keys() >= awaited, timeout_s)

    def close(self) -> None:
        """Ends the running programs and all their descendants. Blocks, for a limited time; idempotent."""
        with self._changed:
            self._is_closing = True
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        try:
            self._guardian.wait(self._grace_s + END_S)
        except subprocess.TimeoutExpired:  # a process does not die: the kernel kills the programs with the guardian
            self._guardian.kill()
            self._guardian.wait()
        self._reader.join()

    def _await_starts(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or all(self._num_starts.values()), START_S)
            if not all(self._num_starts.values()):
                raise EngineError(f"{', '.join(self._names)} could not be started")

    def _send_line(self, line: str) -> None:
        assert self._guardian.stdin is not None
        data = f"{line}\n".encode()
        try:
            while data:
                data = data[self._guardian.stdin.write(data) :]
        except (BrokenPipeError, ValueError):
            raise EngineError("the guardian of the programs has ended") from None

    def _read_events(self, events: int) -> None:
        with os.fdopen(events, "rb") as lines:
            for line in lines:
                self._handle_event(json.loads(line))
        with self._changed:
            if not self._is_closing:
                LOGGER.error("the guardian of %s was lost; the programs are ended", ", ".join(self._names))
            self._is_over = True
            self._processes.clear()
            self._changed.notify_all()

    def _handle_event(self, event: dict[str, Any]) -> None:
        name = event["name"]
        with self._changed:
            if event["event"] == STARTED:
                self._num_starts[name] += 1
                self._codes.pop(name, None)
                identity = ProcessIdentity.of(event["pid"])
                if identity is not None:  # otherwise it has ended already, and the next event reports that
                    self._processes[name] = identity
            elif event["event"] == ENDED:
                self._processes.pop(name, None)
                if event["restart"] is None:
                    self._codes[name] = event["code"]
                self._num_starts[name] += "problem" in event
                if event["code"] != 0 and not self._is_closing:
                    self._report(name, event)
            self._changed.notify_all()

    def _report(self, name: str, event: Mapping[str, Any]) -> None:
        how, restart = event.get("problem") or describe_exit(event["code"]), event["restart"]
        if restart is not None:
            LOGGER.warning("%s %s; restarting it: restart %d of %d", name, how, restart, self._max_restarts)
        elif self._max_restarts:
            LOGGER.error("%s %s; not restarted: all %d restarts are used", name, how, self._max_restarts)
        else:
            LOGGER.error("%s %s", name, how)
