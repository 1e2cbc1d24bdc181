"""``python -m lockstep.processes.guardian``: starts programs, and ends them when the process that started it has ended.

The guardian reads a plan from its standard input, as a line of JSON, and then the names of programs to restart, one per
line. It reports events as lines of JSON to another descriptor. When its standard input ends, or the process that
started it has ended in any way, it ends all programs and their descendants. If a program is killed, the others keep
running. If the guardian itself is killed, the kernel kills the programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final, final

from lockstep.processes.families import adopt_orphans, end_descendants, reap_children

STARTED: Final = "started"
ENDED: Final = "ended"

READ_BYTES: Final = 64 * 1024
DRAIN_S: Final = 1.0
"""How long to forward the remaining output of each program's stream after the programs have ended, in seconds."""

_PR_SET_PDEATHSIG: Final = 1  # from Linux's prctl.h
_LIBC: Final = ctypes.CDLL(None)
_LOST: Final = 1
"""The exit code of a program that could not be started, or whose guardian ended before the program started."""


@final
@dataclass(frozen=True, kw_only=True)
class GuardedProgram:
    """A program to start.

    Attributes:
        name: the program's name, such as "worker 0".
        command: the program and its arguments.
        variables: environment variables of the program, in addition to the guardian's.
        output: a file that standard output and standard error are appended to; None to forward them to the guardian's
            own, with the program's name before each line.
    """

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    output: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The programs that a guardian starts, and how it treats them.

    Attributes:
        programs: the programs to start.
        parent: the id of the process whose end ends the programs.
        cwd: the working folder of the programs.
        max_restarts: how many restarts there may be, over all programs. A program is restarted when it is killed or
            ends with an exit code other than 0.
        grace_s: the time between SIGTERM and SIGKILL when the programs are ended, in seconds.
    """

    programs: tuple[GuardedProgram, ...]
    parent: int
    cwd: str
    max_restarts: int
    grace_s: float

    def to_json(self) -> str:
        """Returns the plan as a line of JSON for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> Plan:
        """Parses a line from `to_json`."""
        document: dict[str, Any] = json.loads(line)
        programs: list[dict[str, Any]] = document.pop("programs")
        commands = [tuple[str, ...](program.pop("command")) for program in programs]
        made = (GuardedProgram(command=command, **rest) for command, rest in zip(commands, programs, strict=True))
        return cls(programs=tuple(made), **document)


@final
class Guardian:
    """Starts the programs of a plan, restarts them, and ends them.

    Args:
        plan: the plan.
        control: the descriptor to read the names of programs to start again from; when it ends, the programs are
            ended.
        events: the descriptor to report events to.
    """

    def __init__(self, plan: Plan, *, control: int, events: int) -> None:
        self._plan = plan
        self._programs = {program.name: program for program in plan.programs}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._num_restarts = 0
        self._control = control
        self._partial_line = b""
        self._events = events
        self._outputs: list[threading.Thread] = []
        self._locks = {descriptor: threading.Lock() for descriptor in (1, 2)}

    def run(self) -> None:
        """Starts all programs, watches them, and ends them when the parent has ended. Blocks."""
        wake = _wake_descriptor(signal.SIGCHLD, signal.SIGTERM)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            for descriptor in _exit_descriptor(self._plan.parent):
                selector.register(descriptor, selectors.EVENT_READ)
            for program in self._plan.programs:
                self._start(program)
            while os.getppid() == self._plan.parent:
                ready = {key.fd for key, _ in selector.select()}
                if wake in ready and signal.SIGTERM in os.read(wake, READ_BYTES):
                    break
                if self._control in ready and not self._read_names():
                    break
                self._reap()
        end_descendants(grace_s=self._plan.grace_s)
        for thread in self._outputs:
            thread.join(DRAIN_S)

    def _read_names(self) -> bool:
        """Starts the programs whose names arrived; returns False at the end of the control descriptor."""
        data = os.read(self._control, READ_BYTES)
        *names, self._partial_line = (self._partial_line + data).split(b"\n")
        for name in names:
            if name.decode() not in self._running:
                self._start(self._programs[name.decode()])
        return bool(data)

    def _start(self, program: GuardedProgram) -> None:
        try:
            process = self._spawn(program)
        except OSError as error:
            self._report(ENDED, program.name, code=_LOST, restart=None, problem=f"could not be started: {error}")
            return
        self._running[program.name] = process
        self._report(STARTED, program.name, pid=process.pid)

    def _spawn(self, program: GuardedProgram) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            to = subprocess.PIPE
            if program.output is not None:
                to = stack.enter_context(Path(program.output).open("ab")).fileno()
            process = subprocess.Popen(
                program.command,
                cwd=self._plan.cwd,
                env={**os.environ, **program.variables},
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=to,
                start_new_session=True,
                # Safe between fork and exec: it takes no lock, and calls one function of the loaded C library.
                preexec_fn=functools.partial(_end_with_parent, os.getpid()),
            )
        self._outputs = [thread for thread in self._outputs if thread.is_alive()]
        for source, target in ((process.stdout, 1), (process.stderr, 2)):
            if source is not None:
                arguments = (source, f"{program.name}: ".encode(), target, self._locks[target])
                # A thread for each stream, so that a reader that does not read blocks only its own program.
                self._outputs.append(threading.Thread(target=_forward_output, args=arguments, daemon=True))
                self._outputs[-1].start()
        return process

    def _reap(self) -> None:
        for name, process in list(self._running.items()):
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):  # before `wait` below frees its id
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            del self._running[name]
            is_again = code != 0 and self._num_restarts < self._plan.max_restarts
            self._num_restarts += is_again
            self._report(ENDED, name, code=code, restart=self._num_restarts if is_again else None)
            if is_again:
                self._start(self._programs[name])
        own = {process.pid for process in self._running.values()}
        reap_children(lambda process: process.pid not in own)

    def _report(self, event: str, name: str, **what: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has ended, so `run` ends all programs next
            os.write(self._events, json.dumps({"event": event, "name": name, **what}).encode() + b"\n")


def _wake_descriptor(*numbers: signal.Signals) -> int:
    """Returns a descriptor that yields a byte for each of these signals that arrives."""
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)
    return wake


def _exit_descriptor(pid: int) -> Iterator[int]:
    """Yields a descriptor that becomes readable when a process has ended; yields none if the system has no such.

    The end of standard input shows the process's end as well, unless the process has a forked child that keeps the pipe
    open.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or the process has ended, which `getppid` shows
            yield os.pidfd_open(pid)


def _end_with_parent(parent: int) -> None:
    """Tells the kernel to kill this process when its parent ends."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has ended in the meantime
            os._exit(_LOST)


def _forward_output(source: IO[bytes], prefix: bytes, target: int, lock: threading.Lock) -> None:
    """Copies a stream to a target line by line, with a prefix before each line.

    If the target fails, the stream is still read to its end, so that its program does not block.
    """
    rest, is_taken = b"", True
    while True:
        data = os.read(source.fileno(), READ_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        if rest and (not data or len(rest) > READ_BYTES):
            lines, rest = [*lines, rest], b""
        text = b"".join(prefix + line + b"\n" for line in lines)
        with lock:
            while text and is_taken:
                try:
                    text = text[os.write(target, text) :]
                except BlockingIOError:  # another process that shares the descriptor has made it non-blocking
                    os.set_blocking(target, True)
                except OSError:
                    is_taken = False
        if not data:
            source.close()
            return


def main(arguments: Sequence[str]) -> None:
    """Runs a guardian until it has ended its programs.

    Args:
        arguments: the number of the descriptor to report events to.
    """
    control = sys.stdin.fileno()
    os.set_inheritable(int(arguments[0]), False)
    line = b""
    while not line.endswith(b"\n"):  # byte by byte, because the bytes after this line are read by the guardian
        data = os.read(control, 1)
        if not data:
            return
        line += data
    adopt_orphans()
    Guardian(Plan.from_json(line), control=control, events=int(arguments[0])).run()


if __name__ == "__main__":
    main(sys.argv[1:])
