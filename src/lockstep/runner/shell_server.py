"""Serves shells beside a replica's program, with its environment and folder. They end with it at the latest."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pty
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, final

import psutil
from pydantic import ValidationError

from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError
from lockstep.jobs.running.shell_frames import (
    SHELL_END,
    TERMINAL,
    Frame,
    FrameKind,
    FrameReader,
    ShellEnd,
    ShellRequest,
    Terminal,
    encode_frame,
    parse_shell_request,
)
from lockstep.local_sockets import short_address
from lockstep.runner import terminal

LOGGER: Final = logging.getLogger(__name__)

MAX_SHELLS: Final = 8
START_TIMEOUT_S: Final = 10.0
SEND_TIMEOUT_S: Final = 60.0
"""The time after which a client that reads nothing counts as gone, in seconds."""
HANG_UP_S: Final = 2.0
DRAIN_S: Final = 1.0
POLL_S: Final = 0.1
READ_BYTES: Final = 32 * 1024
PENDING_BYTES: Final = 64 * 1024

_PEER: Final = struct.Struct("3i")

Enter = Callable[[Sequence[str], str | None], list[str]]


@final
class ShellServer:
    """Listens on a socket for processes of this user, which may open shells.

    Args:
        path: the path of the socket.
        env: the environment variables of the program.
        cwd: the working folder of the program.
        user: the id of the user that the program runs as; None for this process's own.
        enter: converts a command and its terminal's kind to a command line that runs where the program runs; None if
            that is this node itself.

    Raises:
        OSError: If the socket cannot be created.
    """

    def __init__(
        self,
        path: Path,
        *,
        env: Mapping[str, str],
        cwd: Path,
        user: int | None = None,
        enter: Enter | None = None,
    ) -> None:
        self._path = path
        self._enter = enter
        self._env = dict(env)
        self._cwd = cwd
        self._user = user
        self._lock = threading.Lock()
        self._sessions: set[_Session] = set()
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        with short_address(path) as address:
            self._listener.bind(address)
        os.chmod(path, 0o600)
        self._listener.listen()
        threading.Thread(target=self._accept, name="shells", daemon=True).start()

    @contextlib.contextmanager
    def reserved_pids(self) -> Iterator[frozenset[int]]:
        """Yields the process ids of the shells, which only this server waits for; no shell starts within the block."""
        with self._lock:
            yield frozenset(session.pid for session in self._sessions if session.pid is not None)

    def close(self) -> None:
        """Ends all shells, notifies their clients that the replica is over, and removes the socket. Bounded in time."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in `accept`
        self._listener.close()
        with self._lock:
            sessions = list(self._sessions)
        deadline = time.monotonic() + HANG_UP_S + DRAIN_S
        for session in sessions:
            session.thread.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed; or out of descriptors, which may pass
                self._closed.wait(POLL_S)
                continue
            try:
                self._accept_client(connection)
            except (OSError, RuntimeError):  # the same; or out of threads
                connection.close()
                self._closed.wait(POLL_S)

    def _accept_client(self, connection: socket.socket) -> None:
        """Starts a shell for a client that has connected.

        Raises:
            OSError: If there is no file descriptor left for it.
            RuntimeError: If no thread can be started for it.
        """
        if not _is_same_user(connection):
            connection.close()
            return
        with self._lock:
            session = _Session(
                connection,
                env=self._env,
                cwd=self._cwd,
                user=self._user,
                enter=self._enter,
                lock=self._lock,
                closed=self._closed,
            )
            is_full = len(self._sessions) >= MAX_SHELLS
            if not is_full:
                self._sessions.add(session)
        if is_full:
            session.refuse(f"{MAX_SHELLS} shells are open in this replica already")
            return
        thread = threading.Thread(target=self._serve, args=(session,), name="shell", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._sessions.discard(session)
            raise
        session.thread = thread

    def _serve(self, session: _Session) -> None:
        try:
            session.run()
        except Exception:  # a failed shell must not affect the program
            LOGGER.exception("a shell failed")
        finally:
            with self._lock:
                self._sessions.discard(session)


def _is_same_user(connection: socket.socket) -> bool:
    """Returns whether the client is a process of this user or of root. Outside Linux, its mode protects the socket."""
    if sys.platform != "linux":
        return True
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in (0, os.geteuid())


@final
class _Session:
    """One shell, and the client that is connected to it."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        env: Mapping[str, str],
        cwd: Path,
        enter: Enter | None,
        user: int | None,
        lock: threading.Lock,
        closed: threading.Event,
    ) -> None:
        self.pid: int | None = None
        self.thread = threading.current_thread()
        self._connection = connection
        self._env = env
        self._cwd = cwd
        self._enter = enter
        self._user = user
        self._lock = lock
        self._closed = closed
        self._reader = FrameReader()
        self._selector = selectors.DefaultSelector()
        self._outputs: dict[int, FrameKind] = {}
        self._input: int | None = None
        self._pending = bytearray()
        self._input_ended = False
        self._is_connected = True

    def refuse(self, problem: str) -> None:
        """Tells the client why it gets no shell, and closes the connection."""
        with self._connection, contextlib.suppress(OSError):
            self._connection.settimeout(1.0)
            self._connection.sendall(encode_frame(FrameKind.END, SHELL_END.dump_json(ShellEnd(problem=problem))))

    def run(self) -> None:
        """Runs the shell until it ends, or until the client disconnects."""
        with self._connection, self._selector:
            try:
                request, early = self._await_request()
                process = self._start(request)
            except (FileNotFoundError, PermissionError) as error:
                is_there = isinstance(error, PermissionError)
                self._send(FrameKind.ERRORS, f"lockstep: {error.filename}: {error.strerror}\n".encode())
                self._send(FrameKind.END, SHELL_END.dump_json(ShellEnd(exit_code=126 if is_there else 127)))
                return
            except (LockstepError, OSError) as error:
                self.refuse(str(error))
                return
            self._connection.settimeout(SEND_TIMEOUT_S)
            try:
                self._relay(process, early)
            finally:
                self._end_shell(process)
                for descriptor in {*self._outputs, *([] if self._input is None else [self._input])}:
                    os.close(descriptor)
            self._send(FrameKind.END, SHELL_END.dump_json(self._end_of(process)))

    def _await_request(self) -> tuple[ShellRequest, list[Frame]]:
        self._connection.settimeout(START_TIMEOUT_S)
        frames: list[Frame] = []
        while not frames:
            data = self._connection.recv(READ_BYTES)
            if not data:
                raise InvalidInputError("the client disconnected before its request")
            frames = self._reader.feed(data)
        if frames[0].kind is not FrameKind.START:
            raise InvalidInputError("the first frame of a shell must be its request")
        return parse_shell_request(frames[0].payload), frames[1:]

    def _start(self, request: ShellRequest) -> subprocess.Popen[bytes]:
        if self._enter is not None:
            command = self._enter(request.command, None if request.terminal is None else request.terminal.kind)
        else:
            command = list(request.command) or [shutil.which("bash", path=self._env.get("PATH")) or "/bin/sh"]
        if request.terminal is None:
            with self._lock:
                process = subprocess.Popen(
                    command,
                    cwd=self._cwd,
                    env=dict(self._env),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    user=self._user,
                    group=self._user,
                    extra_groups=None if self._user is None else [],
                    umask=-1 if self._user is None else 0o022,
                )
                self.pid = process.pid
            streams = (process.stdin, process.stdout, process.stderr)
            self._input, output, errors = (os.dup(stream.fileno()) for stream in streams if stream is not None)
            for stream in streams:
                assert stream is not None
                stream.close()
            self._outputs = {output: FrameKind.OUTPUT, errors: FrameKind.ERRORS}
        else:
            process = self._start_on_terminal(command, request.terminal)
        for descriptor, kind in self._outputs.items():
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, kind)
        assert self._input is not None
        os.set_blocking(self._input, False)
        self._selector.register(self._connection, selectors.EVENT_READ, "connection")
        return process

    def _start_on_terminal(self, command: list[str], asked: Terminal) -> subprocess.Popen[bytes]:
        ours, theirs = pty.openpty()
        try:
            _resize(ours, asked)
            with self._lock:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(terminal.__file__), *command],
                    cwd=self._cwd,
                    env={**self._env, "TERM": asked.kind},
                    stdin=theirs,
                    stdout=theirs,
                    stderr=theirs,
                    start_new_session=True,
                    user=self._user,
                    group=self._user,
                    extra_groups=None if self._user is None else [],
                    umask=-1 if self._user is None else 0o022,
                )
                self.pid = process.pid
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._outputs = {ours: FrameKind.OUTPUT}
        self._input = os.dup(ours)
        return process

    def _relay(self, process: subprocess.Popen[bytes], early: list[Frame]) -> None:
        self._take(early)
        open_outputs = set(self._outputs)
        drained_at: float | None = None
        while self._is_connected and not self._closed.is_set():
            self._write_input()
            for key, _ in self._selector.select(timeout=POLL_S):
                if key.data == "connection":
                    self._read_connection()
                elif isinstance(key.data, FrameKind) and not self._read_output(key.fd, key.data):
                    self._selector.unregister(key.fd)
                    open_outputs.discard(key.fd)
            self._is_connected = self._is_connected and not self._has_hung_up()
            if process.poll() is not None:
                # Processes that the command left running may hold its output open forever.
                drained_at = drained_at or time.monotonic() + DRAIN_S
                if not open_outputs or time.monotonic() > drained_at:
                    return

    def _has_hung_up(self) -> bool:
        """Returns whether the client is gone; while its input is not read, nothing else shows this."""
        watch = select.poll()
        watch.register(self._connection, 0)
        return any(event & select.POLLHUP for _, event in watch.poll(0))

    def _read_connection(self) -> None:
        try:
            data = self._connection.recv(READ_BYTES)
            if data:
                self._take(self._reader.feed(data))
        except (OSError, CorruptDataError):
            data = b""
        if not data:
            self._is_connected = False

    def _take(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.kind is FrameKind.INPUT and not self._input_ended:
                self._pending += frame.payload
            elif frame.kind is FrameKind.INPUT_END:
                self._input_ended = True
            elif frame.kind is FrameKind.RESIZE and self._input is not None:
                with contextlib.suppress(ValidationError, OSError):  # without a terminal there is no window
                    _resize(self._input, TERMINAL.validate_json(frame.payload))

    def _write_input(self) -> None:
        if self._input is None:
            return
        try:
            while self._pending:
                del self._pending[: os.write(self._input, self._pending[:READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self._pending.clear()
            self._input_ended = True
        if self._input_ended and not self._pending:
            os.close(self._input)
            self._input = None
        is_read = self._connection in self._selector.get_map()
        is_full = len(self._pending) > PENDING_BYTES
        if is_full and is_read:
            self._selector.unregister(self._connection)
        elif not is_full and not is_read:
            self._selector.register(self._connection, selectors.EVENT_READ, "connection")

    def _read_output(self, descriptor: int, kind: FrameKind) -> bool:
        """Sends the available output; returns whether more may follow."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # a terminal without any process left
            return False
        if data:
            self._send(kind, data)
        return bool(data)

    def _send(self, kind: FrameKind, payload: bytes) -> None:
        try:
            self._connection.sendall(encode_frame(kind, payload))
        except OSError:
            self._is_connected = False

    def _end_shell(self, process: subprocess.Popen[bytes]) -> None:
        """Ends what is left of the shell: first with SIGHUP, then with SIGKILL."""
        if process.poll() is not None:  # its pid may belong to another process by now
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
            for number, wait_s in ((signal.SIGHUP, HANG_UP_S), (signal.SIGKILL, HANG_UP_S)):
                left = [member for member in family if member.is_running()]
                for member in left:
                    with contextlib.suppress(psutil.Error):
                        member.send_signal(number)
                if process.poll() is None:
                    process.send_signal(number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(wait_s)
        process.wait()

    def _end_of(self, process: subprocess.Popen[bytes]) -> ShellEnd:
        if self._closed.is_set():
            return ShellEnd(problem="the replica has ended")
        code = process.returncode
        return ShellEnd(exit_code=code if code >= 0 else 128 - code)


def _resize(descriptor: int, asked: Terminal) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", asked.num_rows, asked.num_columns, 0, 0))
