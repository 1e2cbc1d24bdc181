"""``python -m lockstep.runner.local``: runs the replicas of a job as processes of this machine, without a service.

It reads a `LocalRun` from its standard input, starts each program in the folder of its code, and forwards the output.
The decisions of a gang supervisor are made by the same function here. When the standard input ends, all programs are
stopped: they never outlive the process that started them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.errors import LockstepError
from lockstep.heartbeat import HEARTBEAT_VARIABLE
from lockstep.jobs.running.orders import (
    GangEnd,
    GangOrder,
    GangOutcome,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.running.packages import Code
from lockstep.jobs.running.supervision import next_step
from lockstep.processes.families import adopt_orphans
from lockstep.runner.containers import ContainerRun
from lockstep.runner.control import Control
from lockstep.runner.environment import program_environment
from lockstep.runner.logs import LineSplitter
from lockstep.runner.program import AbstractProgram, Program, end_descendants
from lockstep.runner.python_environment import provide_environment
from lockstep.runner.waiting import StoppedError, wait_for

READ_BYTES: Final = 64 * 1024
DRAIN_S: Final = 1.0
CONTAINER_TIMEOUT_S: Final = 4000.0
STOPPED_EXIT_CODE: Final = 130
"""A shell's exit code for a program that Ctrl-C ended."""

_DEVICES: Final = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")


@final
@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A job to run locally.

    Attributes:
        order: the replicas; the locations of their logs and packages are not used.
        folder: the folder with the program's code, which is also its working folder.
    """

    order: GangOrder
    folder: str


LOCAL_RUN: Final = TypeAdapter(LocalRun)
"""Reads and writes a `LocalRun` as JSON."""


def local_environment(order: ReplicaOrder, *, folder: Path, environment: Path | None = None) -> dict[str, str]:
    """Returns the environment variables of a program: those of a job, but with this machine's devices."""
    code = Code(folder=folder, module_path=(folder, folder.parent))
    env = program_environment(order, code=(code,), environment=environment, node=os.environ)
    del env[HEARTBEAT_VARIABLE]  # no runner listens here
    for name in _DEVICES:  # for a job, its machine type decides; here, the user does
        if name in order.environment:
            continue
        env.pop(name, None)
        if name in os.environ:
            env[name] = os.environ[name]
    return env


@final
class _Output:
    """One output stream of one program, which is forwarded to a stream of this process.

    Args:
        descriptor: the file descriptor to read from.
        to: the file descriptor to write to: this process's standard output or standard error.
        prefix: the text before each line; None to forward the bytes unchanged.
    """

    def __init__(self, descriptor: int, *, to: int, prefix: str | None) -> None:
        self.descriptor = descriptor
        self._to = to
        self._prefix = prefix
        self._splitter = LineSplitter()

    def forward(self) -> bool:
        """Reads once and writes the output; returns whether more may follow.

        Raises:
            BrokenPipeError: If nobody reads this process's output any more.
        """
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        if self._prefix is not None:
            texts = self._splitter.feed(data) if data else self._splitter.finish()
            shown = "".join(f"{self._prefix}  {text}\n" for text in texts).encode()
        else:
            shown = data
        while shown:
            shown = shown[os.write(self._to, shown) :]
        return bool(data)


@final
class LocalGang:
    """Runs the replicas until they have ended.

    Args:
        run: the job to run.
        control: the file descriptor whose end means that all programs have to stop.
    """

    def __init__(self, run: LocalRun, *, control: int) -> None:
        self._order = run.order
        self._folder = Path(run.folder)
        self._control = Control(control)
        self._selector = selectors.DefaultSelector()
        self._programs: dict[str, AbstractProgram] = {}
        self._containers: list[ContainerRun] = []
        self._statuses: dict[str, ReplicaStatus] = {}
        self._stopping: dict[str, float] = {}
        self._stop_requested = False

    def run(self) -> int:
        """Starts all programs, waits for the end, and returns the exit code: that of the failed program if one failed.

        Raises:
            LockstepError: If a program could not be started; the others have been ended.
        """
        try:
            return self._run()
        except StoppedError:
            return STOPPED_EXIT_CODE
        finally:
            for container in self._containers:
                container.discard()
            if self._containers:
                shutil.rmtree(Path(self._order.replicas[0].spool).parent, ignore_errors=True)

    def _run(self) -> int:
        receiver, sender = socket.socketpair()

        def wake() -> None:
            with contextlib.suppress(OSError):  # the loop is over, and no longer needs to be woken
                sender.send(b".")

        with receiver, sender, self._selector:
            receiver.setblocking(False)
            self._selector.register(self._control, selectors.EVENT_READ, self._read_control)
            self._selector.register(receiver, selectors.EVENT_READ, lambda: receiver.recv(1024))
            lease = provide_environment(
                self._order.replicas[0], folder=self._folder, control=self._control, report_line=_report_line
            )
            environment = None if lease is None else lease.folder
            try:
                for replica in self._order.replicas:
                    if replica.container is None:
                        program = self._process(replica, environment=environment, on_end=wake)
                    else:
                        program = self._container(replica, runs_code=replica.container.runs_code, on_end=wake)
                    self._register(replica, program)
                end = self._loop()
            finally:
                for program in [*self._programs.values()][:1]:  # all are descendants of this process
                    end_descendants(program)
            self._drain()
        return self._exit_code(end)

    def _process(
        self, replica: ReplicaOrder, *, environment: Path | None, on_end: Callable[[], object]
    ) -> AbstractProgram:
        env = local_environment(replica, folder=self._folder, environment=environment)
        python = sys.executable if environment is None else str(environment / "bin" / "python")
        try:
            return Program((python, *replica.command), cwd=self._folder, env=env, on_end=on_end)
        except (OSError, ValueError) as error:  # ValueError: a null byte
            raise LockstepError(f"{replica.name} could not be started: {error}") from None

    def _container(self, replica: ReplicaOrder, *, runs_code: bool, on_end: Callable[[], object]) -> AbstractProgram:
        code = [Code(folder=self._folder, module_path=(self._folder, self._folder.parent))] if runs_code else []
        container = ContainerRun(replica, report_line=_report_line)
        self._containers.append(container)

        def start() -> AbstractProgram:
            container.prepare(code)
            return container.start(on_end=on_end)

        return wait_for(
            start, control=self._control, timeout_s=CONTAINER_TIMEOUT_S, what=f"{replica.name} did not start"
        )

    def _register(self, replica: ReplicaOrder, program: AbstractProgram) -> None:
        self._programs[replica.name] = program
        self._statuses[replica.name] = ReplicaStatus(
            name=replica.name,
            phase=ReplicaPhase.RUNNING,
            pid=program.pid,
            started_time_s=program.started_time_s,
        )
        prefix = replica.name if len(self._order.replicas) > 1 else None
        for descriptor, to in ((program.stdout, sys.stdout.fileno()), (program.stderr, sys.stderr.fileno())):
            output = _Output(descriptor, to=to, prefix=prefix)
            self._selector.register(descriptor, selectors.EVENT_READ, lambda o=output: self._forward(o))

    def _loop(self) -> GangEnd:
        while True:
            self._record_ends()
            step = next_step(
                self._order, statuses=self._statuses, stop_requested=self._stop_requested, now_s=time.time()
            )
            if step.end is not None:
                return step.end
            self._stop(step.stop)
            for key, _ in self._selector.select(timeout=0.2):
                key.data()

    def _record_ends(self) -> None:
        for name, program in self._programs.items():
            status = self._statuses[name]
            if program.ended and status.end is None:
                end = ProgramEnd(
                    exit_code=program.exit_code,
                    signal=program.signal_name,
                    stopped=name in self._stopping,
                    problem=program.problem,
                )
                self._statuses[name] = replace(status, phase=ReplicaPhase.ENDED, ended_time_s=time.time(), end=end)

    def _stop(self, names: tuple[str, ...]) -> None:
        """Sends SIGTERM to programs, and SIGKILL when their grace period is over."""
        grace_s = {replica.name: replica.grace_s for replica in self._order.replicas}
        now = time.monotonic()
        for name in names:
            number = signal.SIGTERM
            if name in self._stopping:
                if now < self._stopping[name] + grace_s[name]:
                    continue
                number = signal.SIGKILL
            self._stopping.setdefault(name, now)
            self._programs[name].signal_program(number)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        own = {self._control.fileno()}
        while time.monotonic() < deadline:
            waiting = [key for key, _ in self._selector.select(timeout=0) if key.fd not in own]
            if not waiting:
                return
            for key in waiting:
                key.data()

    def _forward(self, output: _Output) -> None:
        try:
            if not output.forward():
                self._selector.unregister(output.descriptor)
        except BrokenPipeError:  # the reader went away (`lockstep local train ... | head`)
            self._selector.unregister(output.descriptor)
            self._stop_requested = True

    def _read_control(self) -> None:
        self._control.read()
        if self._control.has_ended:
            self._selector.unregister(self._control)
            self._stop_requested = True

    def _exit_code(self, end: GangEnd) -> int:
        if end.outcome is GangOutcome.SUCCEEDED:
            return 0
        if end.outcome is GangOutcome.STOPPED or end.culprit is None:
            return STOPPED_EXIT_CODE
        if len(self._order.replicas) > 1:
            sys.stderr.write(f"lockstep: {end.reason}; the others were stopped\n")
        failed = self._statuses[end.culprit].end
        assert failed is not None
        if failed.exit_code is not None:
            return failed.exit_code
        number = signal.Signals.__members__.get(failed.signal or "", 0)
        return 128 + number  # as a shell reports it


def _report_line(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def main() -> int:
    """Runs the job that the standard input describes; returns the exit code."""
    # This process is stopped through its standard input. It sets a handler rather than SIG_IGN, which the programs
    # would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    run = LOCAL_RUN.validate_json(sys.stdin.buffer.readline())
    adopt_orphans()
    try:
        return LocalGang(run, control=sys.stdin.fileno()).run()
    except LockstepError as error:
        _report_line(f"lockstep: error: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
