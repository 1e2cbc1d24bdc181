"""``lockstep exec``."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, final

import typer

from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, JobArgument, ProjectOption, connect
from lockstep.cli.trials import explain_search, is_search
from lockstep.client.shell_connection import ShellConnection
from lockstep.errors import ExitCode, UnavailableError, WrongStateError
from lockstep.jobs.running.shell_frames import SHELL_END, TERMINAL, FrameKind, ShellEnd, ShellRequest, Terminal

READ_BYTES: Final = 32 * 1024


def execute(
    job: JobArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The command to run. Default: an interactive shell."),
    ] = None,
    replica: Annotated[
        str | None, typer.Option(help="Replica to run it in, such as worker-replica-1. Default: the first one.")
    ] = None,
    terminal: Annotated[
        bool | None,
        typer.Option(
            "--terminal/--no-terminal", help="Allocate a terminal. Default: only if this command runs in one."
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Run a command or an interactive shell beside a replica's program, in its environment and folder.

    The job must be running, and you must have submitted it with --enable-web-access. The exit code is that of the
    command.
    """
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    wanted = has_terminal if terminal is None else terminal
    request = ShellRequest(command=tuple(command or ()), terminal=_terminal() if wanted else None)
    with connect(project) as client:
        name = replica if replica is not None else _first_replica(client.job(job))
        shell = client.open_shell(job, replica=name, request=request)
    with contextlib.closing(shell), _raw_terminal() if wanted and has_terminal else contextlib.nullcontext():
        end = _Session(shell, follows_window=request.terminal is not None).run()
    if end.exit_code is None:
        ERRORS.print(f"lockstep: error: {end.problem or 'the connection to the replica was lost'}")
    raise typer.Exit(ExitCode.UNAVAILABLE if end.exit_code is None else end.exit_code)


def _first_replica(job: Mapping[str, Any]) -> str:
    replicas = job["lockstep"]["replicas"]
    if is_search(job):
        raise WrongStateError(explain_search(job, "lockstep exec", what="program"))
    if not replicas:
        raise UnavailableError(f"job {job['jobId']} has no replicas now", action="wait until it runs")
    return str(replicas[0]["name"])


def _terminal() -> Terminal:
    """Returns the terminal of this process.

    LINES and COLUMNS are not used, because they may be exported and not match the window.
    """
    kind = os.environ.get("TERM", "xterm")[:64]
    for stream in (sys.stdout, sys.stdin, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the stream is not a terminal, or is closed
            size = os.get_terminal_size(stream.fileno())
            if size.lines > 0 and size.columns > 0:
                return Terminal(num_rows=size.lines, num_columns=size.columns, kind=kind)
    return Terminal(kind=kind)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Sets the terminal to raw mode within the block, so that every key is forwarded, even Ctrl-C."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@final
class _Session:
    """Forwards standard input to a shell, and prints the shell's output."""

    def __init__(self, shell: ShellConnection, *, follows_window: bool) -> None:
        self._shell = shell
        self._follows_window = follows_window
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> ShellEnd:
        """Forwards input and output until the shell ends, and returns how it ended."""
        os.set_blocking(self._wake_write, False)
        if self._follows_window:
            signal.signal(signal.SIGWINCH, lambda _number, _frame: self._wake())
        threading.Thread(target=self._carry_input, name="input", daemon=True).start()
        end = ShellEnd()
        for frame in self._shell.frames():
            match frame.kind:
                case FrameKind.OUTPUT:
                    _write(sys.stdout.fileno(), frame.payload)
                case FrameKind.ERRORS:
                    _write(sys.stderr.fileno(), frame.payload)
                case FrameKind.END:
                    end = SHELL_END.validate_json(frame.payload)
                case _:
                    pass
        return end

    def _wake(self) -> None:
        # A signal handler must not send anything, because it may have interrupted another send.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"w")

    def _carry_input(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            try:
                selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            except PermissionError:  # a regular file: always ready, but a selector cannot wait for it
                self._carry_file()
            while True:
                for key, _ in selector.select():
                    data = os.read(key.fd, READ_BYTES)
                    if key.fd == self._wake_read:
                        self._shell.send(FrameKind.RESIZE, TERMINAL.dump_json(_terminal()))
                    elif data:
                        self._shell.send(FrameKind.INPUT, data)
                    else:
                        self._shell.send(FrameKind.INPUT_END)
                        selector.unregister(key.fd)

    def _carry_file(self) -> None:
        while data := os.read(sys.stdin.fileno(), READ_BYTES):
            if not self._shell.send(FrameKind.INPUT, data):
                return
        self._shell.send(FrameKind.INPUT_END)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
