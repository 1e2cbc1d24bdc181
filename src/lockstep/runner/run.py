"""Runs the runner's loop: one thread that reads the program's output, listens for "stop", and reports."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, final

from lockstep.errors import ContainerEngineError, LockstepError, StorageError, UnavailableError
from lockstep.heartbeat import ProfileReport, ProfileState, make_request_file, write_request
from lockstep.jobs.logs import EntryGrouper, LineClass, Severity
from lockstep.jobs.running.orders import (
    STATUS,
    TAIL_LINES,
    Fault,
    ProgramEnd,
    ProgramUsage,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
    initial_status,
)
from lockstep.jobs.running.packages import Code
from lockstep.jobs.running.progress import Progress
from lockstep.processes.confinement import (
    MAX_PROCESSES,
    change_owner,
    drop_privileges,
    kill_processes_of,
    max_server_processes,
    raise_priority,
)
from lockstep.runner.code import fetch_files, unpack
from lockstep.runner.compiled_programs import CompiledPrograms
from lockstep.runner.confinement import open_path_to_work, user_variables
from lockstep.runner.containers import ContainerRun, Gateway
from lockstep.runner.control import Control
from lockstep.runner.environment import program_environment
from lockstep.runner.heartbeat import HeartbeatListener
from lockstep.runner.logs import LineSplitter, LogWriter, next_seq
from lockstep.runner.memory import MemoryKills
from lockstep.runner.memory_limit import MemoryLimit
from lockstep.runner.metrics import MetricsRecorder
from lockstep.runner.program import AbstractProgram, Program, end_descendants
from lockstep.runner.python_environment import Lease, provide_environment
from lockstep.runner.redaction import Redactor
from lockstep.runner.shell_server import ShellServer
from lockstep.runner.silence import Silence
from lockstep.runner.waiting import StoppedError, wait_for
from lockstep.spools import HEARTBEAT_SOCKET, LOG_FOLDER, SHELL_SOCKET, STATUS_FILE, clear_spool, write_whole
from lockstep.storage import may_succeed_later

USAGE_INTERVAL_S: Final = 2.0
DRAIN_S: Final = 1.0
LOG_CLOSE_S: Final = 5.0
RESCUE_S: Final = 3600.0
"""How long the last entries are kept in memory, and the replica unended, if bucket and disk both fail, in seconds."""
RESCUE_PAUSE_S: Final = 1.0
STUCK_SERVER_GRACE_S: Final = 1.0
"""The time between SIGABRT and SIGKILL for a server that does not respond, in seconds."""
FETCH_TIMEOUT_S: Final = 600.0
CONTAINER_TIMEOUT_S: Final = 4000.0
READ_BYTES: Final = 64 * 1024

_MACHINES: Final = (StorageError, UnavailableError, ContainerEngineError)
"""Errors that the program did not cause."""


@final
class Runner:
    """Runs one replica's program until it has ended.

    Args:
        order: the order of the replica.
        control: the file descriptor on which "stop" arrives, and whose end means that the engine is gone.
        report: called with each change of the replica's status.
    """

    def __init__(self, order: ReplicaOrder, *, control: int, report: Callable[[ReplicaStatus], None]) -> None:
        self._order = order
        self._control = Control(control)
        self._report = report
        self._spool = Path(order.spool)
        self._redactor = Redactor(order.secrets.values())
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._selector = selectors.DefaultSelector()
        self._splitters: dict[str, LineSplitter] = {}
        self._groupers: dict[str, EntryGrouper] = {}
        self._heartbeats = HeartbeatListener(self._spool / HEARTBEAT_SOCKET)
        make_request_file(self._spool)
        self._silence = Silence(order, now=time.monotonic())
        self._metrics: MetricsRecorder | None = None
        self._shells: ShellServer | None = None
        self._stuck: str | None = None
        self._stopped = False
        self._kill_time: float | None = None
        self._memory_kills = MemoryKills()
        self._memory_limit = MemoryLimit(order)
        self._programs: CompiledPrograms | None = None
        self._container: ContainerRun | None = None
        self._gateway: Gateway | None = None
        self._used = ProgramUsage() if order.earlier is None else order.earlier.usage
        self._status = replace(
            initial_status(order, now_s=time.time()), phase=ReplicaPhase.SETUP, host=socket.gethostname()
        )

    def run(self) -> ReplicaStatus:
        """Gets code and environment, runs the program, and returns the final status, which it has reported already."""
        self._update()
        try:
            log = self._open_log()
        except StoppedError:
            return self._finish(None, ProgramEnd(stopped=True, problem="stopped before its program started"))
        except LockstepError as error:
            return self._finish(None, ProgramEnd(problem=f"its log cannot be written: {error}", fault=Fault.MACHINE))
        try:
            return self._run(log)
        except StoppedError:
            return self._finish(log, ProgramEnd(stopped=True, problem="stopped before its program started"))
        except Exception as error:  # whatever it was, the job must get it, with its log
            said = str(error) if isinstance(error, LockstepError | OSError) else repr(error)
            reason = self._redactor.redact_text(said)
            log.add("stderr", f"lockstep: {reason}", line_class=LineClass(severity=Severity.ERROR))
            # A service that does not answer may do so later. An archive that cannot be unpacked never will.
            fault = Fault.MACHINE if isinstance(error, _MACHINES) or may_succeed_later(error) else Fault.PROGRAM
            return self._finish(log, ProgramEnd(problem=f"could not run the program: {reason}", fault=fault))

    def _open_log(self) -> LogWriter:
        """Returns the log: a new one, or the continuation of the previous launch's log."""
        spool, earlier = self._spool / LOG_FOLDER, self._order.earlier
        if earlier is None:
            return LogWriter(self._order.log_url, spool=spool)
        first_seq = None if earlier.end is None else earlier.end.num_log_entries
        if first_seq is None:  # its runner died before it could report it
            first_seq = wait_for(
                lambda: next_seq(self._order.log_url, spool=spool),
                control=self._control,
                timeout_s=FETCH_TIMEOUT_S,
                what="its bucket did not report the end of its log",
            )
        log = LogWriter(self._order.log_url, spool=spool, first_seq=first_seq)
        restart = earlier.restarts[-1]
        text = f"lockstep: launched again (restart {restart.number}): {restart.reason}"
        log.add("stderr", text, line_class=LineClass(severity=Severity.NOTICE))
        return log

    def _run(self, log: LogWriter) -> ReplicaStatus:
        receiver, sender = socket.socketpair()

        def wake() -> None:
            with contextlib.suppress(OSError):  # the loop is over, and no longer needs to be woken
                sender.send(b".")

        with receiver, sender, self._selector:
            self._selector.register(self._control, selectors.EVENT_READ, "control")
            self._selector.register(receiver, selectors.EVENT_READ, "wake")
            if self._user is not None:
                drop_privileges(max_processes=MAX_PROCESSES if self._order.server is None else max_server_processes())
            if self._order.user is not None:
                open_path_to_work(self._spool)
            code = self._fetch_code()
            if self._user is not None:
                change_owner(self._spool / "work", user=self._user)
            lease = self._provide_environment(code, log)
            program, serve = self._start(code, None if lease is None else lease.folder, log, on_end=wake)
            try:
                if self._order.web_access:
                    self._shells = serve()
                started_time_s = self._status.started_time_s or program.started_time_s
                self._update(phase=ReplicaPhase.RUNNING, pid=program.pid, started_time_s=started_time_s)
                metrics = self._metrics = MetricsRecorder(self._order, meter=program.meter)
                self._watch_output(program)
                self._selector.register(self._heartbeats, selectors.EVENT_READ, "heartbeat")
                self._silence.record_start(program.started)
                if self._only_user is not None:
                    raise_priority()
                self._loop(program, metrics, log)
            finally:  # even after an error: nobody would watch the program any more
                if self._shells is not None:
                    self._shells.close()
                if self._gateway is not None:
                    self._gateway.close()
                end_descendants(program)
                if self._only_user is not None:
                    kill_processes_of(self._only_user)
            self._drain(program, log)
            program.close()
            if lease is not None:
                lease.close()
        return self._finish(log, self._program_end(program), usage=self._used.plus(program.final_usage()))

    def _fetch_code(self) -> list[Code]:
        """Downloads the code and the pinned files; "stop" ends the wait for a bucket that does not answer."""
        packages, files, work = self._order.packages, self._order.files, self._spool / "work"

        def fetch() -> list[Code]:
            code = unpack(packages, folder=work)
            fetch_files(files, folder=code[0].folder if code else work)
            return code

        return wait_for(
            fetch,
            control=self._control,
            timeout_s=FETCH_TIMEOUT_S,
            what=f"its code could not be downloaded from {(*packages, *(file.url for file in files))}",
        )

    def _provide_environment(self, code: list[Code], log: LogWriter) -> Lease | None:
        if not code or not self._order.environment_cache:
            return None
        return provide_environment(
            self._order, folder=code[0].folder, control=self._control, report_line=lambda text: log.add("stdout", text)
        )

    def _start(
        self, code: list[Code], environment: Path | None, log: LogWriter, *, on_end: Callable[[], object]
    ) -> tuple[AbstractProgram, Callable[[], ShellServer]]:
        """Starts the program; returns it, and a function that starts its shell server."""
        if self._order.container is not None:
            return self._start_container(code, log, on_end=on_end)
        user = self._order.user
        env = program_environment(self._order, code=code, environment=environment, node=os.environ)
        if user is not None:
            env.update(user_variables(self._spool, user=user, env=env, sockets=[self._spool / HEARTBEAT_SOCKET]))
        server = self._order.server
        if server is not None and server.programs_folder:
            folder = Path(server.programs_folder)
            self._programs = CompiledPrograms(folder, own=self._spool / "programs", user=user)
            self._programs.restore()
            env.update(self._programs.environment)
        command = self._order.command
        if command[0] == "-m":
            command = (sys.executable if environment is None else str(environment / "bin" / "python"), *command)
        cwd = code[0].folder if code else self._spool / "work"
        program = Program(command, cwd=cwd, env=env, user=user, on_end=on_end)
        return program, partial(ShellServer, self._spool / SHELL_SOCKET, env=env, cwd=cwd, user=user)

    def _start_container(
        self, code: list[Code], log: LogWriter, *, on_end: Callable[[], object]
    ) -> tuple[AbstractProgram, Callable[[], ShellServer]]:
        def report_line(text: str) -> None:
            log.add("stderr", f"lockstep: {text}", line_class=LineClass(severity=Severity.INFO))

        container = self._container = ContainerRun(self._order, report_line=report_line)

        def start() -> AbstractProgram:
            container.prepare(code)
            return container.start(on_end=on_end)

        what = "its container did not start"
        program = wait_for(start, control=self._control, timeout_s=CONTAINER_TIMEOUT_S, what=what)
        self._update(image_id=container.image_id)
        routes = None if self._order.server is None else self._order.server.routes
        if routes is not None:
            address = container.find_address(routes.port)
            if address is not None:
                self._gateway = Gateway(self._order, address=address, report_line=report_line)
        path = self._spool / SHELL_SOCKET
        return program, partial(ShellServer, path, env=container.engine_env, cwd=self._spool, enter=container.enter)

    def _watch_output(self, program: AbstractProgram) -> None:
        for name, descriptor in (("stdout", program.stdout), ("stderr", program.stderr)):
            self._splitters[name] = LineSplitter(self._redactor)
            self._groupers[name] = EntryGrouper(whole_messages=name == "stderr")
            self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _loop(self, program: AbstractProgram, metrics: MetricsRecorder, log: LogWriter) -> None:
        next_usage = time.monotonic()
        reading = True
        while not program.ended:
            if reading == log.full:  # the program waits while the log is full
                reading = not log.full
                self._pause_output(program, paused=not reading)
            for key, _ in self._selector.select(timeout=0.2):
                if key.data == "control":
                    self._read_control(program)
                elif key.data in self._splitters:
                    self._read_output(key.fd, key.data, log)
                elif key.data == "heartbeat" and self._heartbeats.read():
                    self._record_heartbeat()
            self._forward_profile_request()
            now = time.monotonic()
            if not reading:  # the program waits for this runner
                self._silence.record_line(now)
            if self._kill_time is None and self._silence.is_too_long(now):
                self._end_stuck(program, now)
            if (
                (self._kill_time is not None and now > self._kill_time)
                or self._memory_limit.is_exceeded(program)
                or (self._gateway is not None and self._gateway.problem is not None)
            ):
                self._kill(program)
            if now >= next_usage:
                next_usage = now + USAGE_INTERVAL_S
                with self._reserved_pids() as shells:
                    program.reap_adopted(excluding=shells)
                self._memory_kills.sample()
                usage = self._used.plus(program.meter.sample())
                metrics.sample(self._heartbeats.progress)
                self._update(usage=usage, progress=self._progress, metrics=metrics.latest)

    def _record_heartbeat(self) -> None:
        self._silence.record_heartbeat(time.monotonic())
        if self._profile != self._status.profile:
            self._update(profile=self._profile, progress=self._progress)
        if self._order.server is not None and self._status.ready_time_s is None:
            self._update(ready_time_s=time.time(), progress=self._progress)
            if self._programs is not None:  # in a thread, because the disk may be slow
                threading.Thread(target=_save, args=(self._programs,), name="programs", daemon=True).start()

    def _forward_profile_request(self) -> None:
        """Passes a request for a profile to the program, unless it is still recording an earlier one."""
        request = self._control.take_profile()
        last = self._profile
        if request is None or (last is not None and last.state in (ProfileState.RECORDING, ProfileState.UPLOADING)):
            return
        report = ProfileReport(request_id=request.request_id, state=ProfileState.REQUESTED, num_steps=request.num_steps)
        try:
            write_request(self._spool, request)
        except OSError as error:
            problem = f"the node's disk does not take the request: {error.strerror}"
            report = replace(report, state=ProfileState.FAILED, problem=problem)
        self._update(profile=report)

    @property
    def _profile(self) -> ProfileReport | None:
        """The report about the profile that was requested last."""
        asked, heard = self._status.profile, self._heartbeats.profile
        is_same = asked is not None and heard is not None and heard.request_id == asked.request_id
        return heard if is_same else asked

    def _final_profile(self) -> ProfileReport | None:
        """Returns the last report; a profile that is not complete never will be."""
        report = self._profile
        if report is None or report.is_over:
            return report
        when = "before a training step began" if report.state is ProfileState.REQUESTED else "before it was complete"
        return replace(report, state=ProfileState.FAILED, problem=f"the program ended {when}")

    def _pause_output(self, program: AbstractProgram, *, paused: bool) -> None:
        for name, descriptor in (("stdout", program.stdout), ("stderr", program.stderr)):
            if paused and descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            elif not paused and name in self._splitters and descriptor not in self._selector.get_map():
                self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _read_control(self, program: AbstractProgram) -> None:
        self._control.read()
        if self._control.has_ended:
            self._selector.unregister(self._control)
        if self._control.is_stopped and not self._stopped:
            self._stopped = True
            self._kill_time = self._kill_time or time.monotonic() + self._order.grace_s
            self._signal(program, signal.SIGTERM)

    def _signal(self, program: AbstractProgram, number: signal.Signals) -> None:
        """Signals the program without the shells beside it, which end with the replica and are notified of its end."""
        with self._reserved_pids() as shells:
            program.signal_all(number, excluding=shells)

    def _kill(self, program: AbstractProgram) -> None:
        if self._only_user is None:
            self._signal(program, signal.SIGKILL)
        else:
            with contextlib.suppress(LockstepError):  # it is tried again
                kill_processes_of(self._only_user)

    @property
    def _user(self) -> int | None:
        """The user that the program runs as; None if that is this process's own, or if it runs in a container."""
        return None if self._order.container is not None else self._order.user

    @property
    def _only_user(self) -> int | None:
        """The user of this program alone; None if there is none. Replicas of other jobs may share one on a node."""
        return None if self._order.server is None else self._user

    def _reserved_pids(self) -> contextlib.AbstractContextManager[frozenset[int]]:
        return contextlib.nullcontext(frozenset[int]()) if self._shells is None else self._shells.reserved_pids()

    def _end_stuck(self, program: AbstractProgram, now: float) -> None:
        """Ends a stuck program with SIGABRT, on which Python writes the stacks of all threads to the log."""
        self._stuck = self._silence.describe(now)
        # Nobody waits for a trainer's stacks, but requests wait for the next server.
        self._kill_time = now + (self._order.grace_s if self._order.server is None else STUCK_SERVER_GRACE_S)
        if self._order.server is None:
            self._signal(program, signal.SIGABRT)
        else:  # alone: a server may have started too many others to find them in time
            program.signal_program(signal.SIGABRT)

    def _read_output(self, descriptor: int, name: str, log: LogWriter) -> bool:
        """Reads once from a pipe; returns whether more may follow."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        self._silence.record_line(time.monotonic())
        splitter = self._splitters[name]
        self._log_lines(name, splitter.feed(data) if data else splitter.finish(), log)
        if not data:
            del self._splitters[name]
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        return bool(data)

    def _log_lines(self, name: str, texts: list[str], log: LogWriter) -> None:
        now_s = time.monotonic()
        for text in texts:
            self._tail.append(text)
            log.add(name, text, line_class=self._groupers[name].classify(text, now_s=now_s))

    def _drain(self, program: AbstractProgram, log: LogWriter) -> None:
        """Reads what is left in the pipes."""
        deadline = time.monotonic() + DRAIN_S
        for name, descriptor in (("stdout", program.stdout), ("stderr", program.stderr)):
            while name in self._splitters and time.monotonic() < deadline and self._read_output(descriptor, name, log):
                pass
            if name in self._splitters:
                self._log_lines(name, self._splitters.pop(name).finish(), log)

    def _program_end(self, program: AbstractProgram) -> ProgramEnd:
        if self._stuck is not None:
            return ProgramEnd(signal=program.signal_name, problem=self._stuck, fault=Fault.STUCK)
        if self._gateway is not None and self._gateway.problem is not None:
            return ProgramEnd(problem=self._gateway.problem, fault=Fault.MACHINE)
        stopped = self._stopped
        recent_s = 2 * USAGE_INTERVAL_S + program.end_report_delay_s
        is_out_of_memory = (
            program.was_out_of_memory
            or self._memory_limit.was_exceeded
            or (program.was_killed and self._memory_kills.had_kill(within_s=recent_s))
        )
        fault = Fault.PROGRAM if program.problem is None else Fault.MACHINE
        return ProgramEnd(
            exit_code=program.exit_code,
            signal=program.signal_name,
            stopped=stopped,
            problem=self._memory_limit.problem or program.problem,
            fault=Fault.MEMORY if is_out_of_memory and not stopped else fault,
            memory_limit_bytes=self._memory_limit.limit_bytes or program.memory_limit_bytes,
        )

    def _finish(self, log: LogWriter | None, end: ProgramEnd, *, usage: ProgramUsage | None = None) -> ReplicaStatus:
        ended_time_s = time.time()
        if self._container is not None:
            self._container.discard()
        self._heartbeats.read()
        self._heartbeats.close()
        if log is not None:
            log.close(timeout_s=LOG_CLOSE_S)
            deadline = time.monotonic() + RESCUE_S
            while not log.save_remaining() and time.monotonic() < deadline:
                time.sleep(RESCUE_PAUSE_S)
        if self._metrics is not None:
            self._metrics.close()
        clear_spool(self._spool)
        self._update(
            phase=ReplicaPhase.ENDED,
            ended_time_s=ended_time_s,
            usage=usage or self._status.usage,
            progress=self._progress,
            profile=self._final_profile(),
            end=replace(end, tail=tuple(self._tail), num_log_entries=self._num_log_entries(log)),
        )
        return self._status

    def _num_log_entries(self, log: LogWriter | None) -> int | None:
        if log is not None:
            return log.num_entries
        return 0 if self._order.earlier is None else None

    @property
    def _progress(self) -> Progress | None:
        """The program's progress; before its first heartbeat, that of the previous launch."""
        return self._heartbeats.progress or self._status.progress

    def _update(self, **changes: object) -> None:
        self._status = replace(self._status, **changes, seen_time_s=time.time())
        if not self._order.machine:  # on a machine that comes and goes, nobody reads it
            with contextlib.suppress(OSError):  # the report counts; a full disk is not the program's fault
                write_whole(self._spool / STATUS_FILE, STATUS.dump_json(self._status))
        self._report(self._status)


def _save(programs: CompiledPrograms) -> None:
    """Saves what a server has compiled. If the disk is full, the next server compiles by itself."""
    with contextlib.suppress(OSError):
        programs.save()
