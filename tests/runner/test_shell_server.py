"""Shells beside a program, over a real runner's socket."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.runner.test_runner_process import RunnerProcess, _order

from lockstep.clusters.shell_relay import IDLE_S, LocalShell, ShellRelay
from lockstep.errors import UnavailableError
from lockstep.jobs.running.orders import ReplicaPhase
from lockstep.jobs.running.shell_frames import (
    SHELL_END,
    SHELL_REQUEST,
    TERMINAL,
    FrameKind,
    FrameReader,
    ShellEnd,
    ShellRequest,
    Terminal,
    encode_frame,
)
from lockstep.runner.shell_server import MAX_SHELLS, ShellServer
from lockstep.spools import SHELL_SOCKET, STATUS_FILE

TIMEOUT_S = 20.0
WAIT = "import time; print('up', flush=True); time.sleep(600)"


class Talk:
    """One shell, and what it said so far."""

    def __init__(self, spool: Path, *command: str, terminal: Terminal | None = None, is_started: bool = True) -> None:
        self.shell = LocalShell(str(spool))
        self.output = self.errors = b""
        self.end: ShellEnd | None = None
        self._reader = FrameReader()
        if is_started:
            request = SHELL_REQUEST.dump_json(ShellRequest(command=command, terminal=terminal))
            self.send(FrameKind.START, request)

    def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        self.shell.send(encode_frame(kind, payload))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, (self.output, self.errors, self.end)
            data = self.shell.receive(timeout_s=1.0)
            assert data is not None, (self.output, self.errors, self.end)
            for frame in self._reader.feed(data):
                self.output += frame.payload if frame.kind is FrameKind.OUTPUT else b""
                self.errors += frame.payload if frame.kind is FrameKind.ERRORS else b""
                if frame.kind is FrameKind.END:
                    self.end = SHELL_END.validate_json(frame.payload)

    def until_over(self) -> ShellEnd:
        self.until(lambda: self.end is not None)
        self.shell.close()
        assert self.end is not None
        return self.end


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    """The spool folder of a replica whose program waits."""
    order = _order(tmp_path, sys.executable, "-c", WAIT, web_access=True, environment={"COLOUR": "blue"})
    runner = RunnerProcess(order)
    runner.wait_for(ReplicaPhase.RUNNING)
    yield tmp_path / "spool"
    runner.close()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [STATUS_FILE], "for a service that asks later"


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
    return True


def test_a_command_runs_in_the_programs_environment_and_folder(spool: Path) -> None:
    talk = Talk(spool, "/bin/sh", "-c", "echo $COLOUR $LOCKSTEP_SPOOL; pwd; echo odd >&2; exit 3")
    assert talk.until_over() == ShellEnd(exit_code=3)
    assert talk.output.decode().split() == ["blue", str(spool), str(spool / "work")]
    assert talk.errors == b"odd\n"
    assert stat.S_IMODE((spool / SHELL_SOCKET).stat().st_mode) == 0o600


def test_input_reaches_it_and_its_end_too(spool: Path) -> None:
    talk = Talk(spool, "sort")
    big = b"".join(b"%07d\n" % number for number in range(60_000, 0, -1))

    def type_it() -> None:
        for start in range(0, len(big), 50_000):
            talk.send(FrameKind.INPUT, big[start : start + 50_000])
        talk.send(FrameKind.INPUT_END)

    typing = threading.Thread(target=type_it)
    typing.start()
    assert talk.until_over() == ShellEnd(exit_code=0)
    typing.join()
    assert talk.output.split() == sorted(big.split())


def test_a_terminal_has_a_size_and_its_keys(spool: Path) -> None:
    talk = Talk(spool, "/bin/sh", terminal=Terminal(num_rows=33, num_columns=121, kind="vt100"))
    talk.send(FrameKind.INPUT, b"stty size; echo $TERM; tty > /dev/null && echo on a terminal\n")
    talk.until(lambda: b"33 121\r\nvt100\r\non a terminal\r\n" in talk.output)
    talk.send(FrameKind.RESIZE, TERMINAL.dump_json(Terminal(num_rows=44, num_columns=99)))
    talk.send(FrameKind.RESIZE, b"nonsense")
    talk.send(FrameKind.INPUT, b"stty size\n")
    talk.until(lambda: b"44 99\r\n" in talk.output)
    talk.send(FrameKind.INPUT, b"sh -c 'echo asleep; exec sleep 600'\n")
    talk.until(lambda: b"asleep\r\n" in talk.output)
    talk.send(FrameKind.INPUT, b"\x03")  # Ctrl-C ends the sleep, not the shell
    talk.send(FrameKind.INPUT, b"echo code=$?; exit 7\n")
    assert talk.until_over() == ShellEnd(exit_code=7)
    assert b"code=130\r\n" in talk.output


@pytest.mark.parametrize("terminal", [None, Terminal()], ids=["pipes", "terminal"])
@pytest.mark.parametrize(("command", "code"), [("/absent", 127), ("/etc", 126)], ids=["absent", "folder"])
def test_a_command_that_cannot_be_run_says_so(spool: Path, terminal: Terminal | None, command: str, code: int) -> None:
    talk = Talk(spool, command, terminal=terminal)
    assert talk.until_over() == ShellEnd(exit_code=code)
    assert f"lockstep: {command}: ".encode() in talk.output + talk.errors


def test_one_that_a_signal_ended_has_a_shells_exit_code(spool: Path) -> None:
    assert Talk(spool, "/bin/sh", "-c", "kill -9 $$").until_over() == ShellEnd(exit_code=137)


def test_who_hangs_up_leaves_nothing_behind(spool: Path) -> None:
    talk = Talk(spool, "/bin/sh", "-c", "trap '' HUP TERM; sleep 600 & echo $$ $!; wait")
    talk.until(lambda: talk.output.endswith(b"\n"))
    pids = [int(word) for word in talk.output.split()]
    talk.shell.close()
    assert all(_gone(pid) for pid in pids)


def test_a_shell_ends_with_its_replica(tmp_path: Path) -> None:
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", WAIT, web_access=True))
    status = runner.wait_for(ReplicaPhase.RUNNING)
    talk = Talk(tmp_path / "spool", "/bin/sh", "-c", "trap '' TERM; echo $$; sleep 600")
    talk.until(lambda: talk.output.endswith(b"\n"))
    assert status.pid is not None
    os.kill(status.pid, 9)
    assert talk.until_over() == ShellEnd(problem="the replica has ended")
    last = runner.last()
    runner.close()
    assert last.end is not None
    assert last.end.signal == "SIGKILL"
    assert _gone(int(talk.output))
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [STATUS_FILE], "for a service that asks later"


def test_a_stop_is_the_programs_and_a_shell_ends_with_the_replica(tmp_path: Path) -> None:
    leave = "lambda *_: time.sleep(1) or exit()"
    program = f"import signal, time; signal.signal(signal.SIGTERM, {leave}); open('ready', 'w'); {WAIT}"
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", program, web_access=True))
    runner.wait_for(ReplicaPhase.RUNNING)
    wait = "until test -e ready; do sleep 0.05; done; echo ready; exec sleep 600"
    talk = Talk(tmp_path / "spool", "/bin/sh", "-c", wait)
    talk.until(lambda: talk.output == b"ready\n")
    assert runner.process.stdin is not None
    runner.process.stdin.write(b"stop\n")
    runner.process.stdin.flush()
    assert talk.until_over() == ShellEnd(problem="the replica has ended")
    assert runner.last().end is not None
    runner.close()


def test_without_web_access_there_is_no_way_in(tmp_path: Path) -> None:
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", WAIT))
    runner.wait_for(ReplicaPhase.RUNNING)
    with pytest.raises(UnavailableError, match="accepts no shells now"):
        LocalShell(str(tmp_path / "spool"))
    runner.close()


def test_so_many_shells_and_no_more(spool: Path) -> None:
    talks = [Talk(spool, "cat") for _ in range(MAX_SHELLS)]
    for talk in talks:
        talk.send(FrameKind.INPUT, b"here\n")
        talk.until(lambda talk=talk: talk.output == b"here\n")
    assert Talk(spool, "cat", is_started=False).until_over().problem == "8 shells are open in this replica already"
    for talk in talks:
        talk.send(FrameKind.INPUT_END)
        assert talk.until_over() == ShellEnd(exit_code=0)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", encode_frame(FrameKind.INPUT, b"x"), encode_frame(FrameKind.START, b"{")]
)
def test_who_does_not_begin_with_a_request_is_told(spool: Path, data: bytes) -> None:
    talk = Talk(spool, is_started=False)
    talk.shell.send(data)
    assert talk.until_over().problem


def test_exit_codes_are_not_lost_to_whoever_reaps_orphans(spool: Path) -> None:
    deadline = time.monotonic() + 5.0  # the runner reaps every two seconds
    while time.monotonic() < deadline:
        assert Talk(spool, "/bin/sh", "-c", "exit 5").until_over() == ShellEnd(exit_code=5)


def test_a_relay_keeps_shells_by_id_and_closes_those_that_nobody_asks(spool: Path) -> None:
    now = [0.0]
    relay = ShellRelay(clock=lambda: now[0])
    kept, left = relay.open(str(spool)), relay.open(str(spool))
    request = encode_frame(FrameKind.START, SHELL_REQUEST.dump_json(ShellRequest(command=("cat",))))
    for shell_id in (kept, left):
        relay.send(shell_id, request + encode_frame(FrameKind.INPUT, b"here\n"))
        assert relay.receive(shell_id, timeout_s=TIMEOUT_S) == encode_frame(FrameKind.OUTPUT, b"here\n")
    now[0] = IDLE_S
    assert relay.receive(kept, timeout_s=0.01) == b""
    now[0] = IDLE_S + 1
    assert relay.close_idle()
    assert relay.receive(left, timeout_s=0.01) is None
    with pytest.raises(UnavailableError):
        relay.send(left, b"")
    relay.close(kept)
    relay.close(kept)
    assert not relay.close_idle()


def test_a_runner_that_has_no_descriptor_left_for_a_while_lets_others_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, faults = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 2

    def accept_later(listener: socket.socket) -> tuple[socket.socket, object]:
        if faults:
            raise faults.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    before = threading.enumerate()
    server = ShellServer(tmp_path / SHELL_SOCKET, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert Talk(tmp_path, "/bin/sh", "-c", "exit 3").until_over() == ShellEnd(exit_code=3)
    (listening,) = [thread for thread in threading.enumerate() if thread.name == "shells" and thread not in before]
    server.close()
    listening.join(TIMEOUT_S)
    assert not listening.is_alive()


@pytest.mark.parametrize("lacking", ["descriptor", "thread"])
def test_a_shell_that_there_is_no_room_for_keeps_no_later_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    make, start, faults = selectors.DefaultSelector, threading.Thread.start, [lacking]

    def make_later() -> selectors.BaseSelector:
        if faults == ["descriptor"]:
            faults.clear()
            raise OSError(errno.EMFILE, "Too many open files")
        return make()

    def start_later(thread: threading.Thread) -> None:
        if faults == ["thread"] and thread.name == "shell":
            faults.clear()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(selectors, "DefaultSelector", make_later)
    monkeypatch.setattr(threading.Thread, "start", start_later)
    server = ShellServer(tmp_path / SHELL_SOCKET, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    refused = LocalShell(str(tmp_path))
    assert refused.receive(timeout_s=TIMEOUT_S) is None, "who is not let in is told so by the end"
    refused.close()
    assert not faults
    assert Talk(tmp_path, "/bin/sh", "-c", "exit 3").until_over() == ShellEnd(exit_code=3)
    deadline = time.monotonic() + TIMEOUT_S
    while server._sessions:
        assert time.monotonic() < deadline, "one that was not let in takes no place"
        time.sleep(0.01)
    server.close()


def test_another_users_process_is_not_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.runner import shell_server

    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        is_root = os.getuid() == 0
        assert shell_server._is_same_user(ours) is is_root


def test_who_hangs_up_while_nobody_reads_the_input_leaves_nothing_behind(spool: Path) -> None:
    talk = Talk(spool, "/bin/sh", "-c", "echo $$; exec sleep 600")
    talk.until(lambda: talk.output.endswith(b"\n"))
    talk.shell._socket.settimeout(1.0)
    with contextlib.suppress(UnavailableError):  # until the runner reads no more
        while True:
            talk.send(FrameKind.INPUT, bytes(30_000))
    talk.shell.close()
    assert _gone(int(talk.output))
