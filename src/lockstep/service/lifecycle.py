"""Bringing the service of a home up and down, from outside it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from lockstep.client import Client, ServiceAddress, find_service
from lockstep.clusters import open_cluster
from lockstep.errors import (
    AlreadyRunningError,
    JobsRunningError,
    LockstepError,
    PortInUseError,
    StorageWriteError,
    UnavailableError,
)
from lockstep.home import Home
from lockstep.jobs import TERMINAL, JobEvent
from lockstep.service.deployments import Deployments
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, ModelStore, open_database

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0
CANCEL_TIMEOUT_S: Final = 60.0

_START_ERRORS: Final = {
    kind.exit_code: kind for kind in (AlreadyRunningError, PortInUseError, StorageWriteError, UnavailableError)
}


def up(settings: Settings) -> ServiceAddress:
    """Starts the service of a home in a process session of its own; returns when it answers.

    Raises:
        AlreadyRunningError: one runs already.
        PortInUseError: the port that was asked for is taken.
        StorageWriteError: the bucket cannot be written.
        UnavailableError: it did not come up; the message has its last line.
    """
    home = settings.home
    running = find_service(home)
    if running is not None:
        raise AlreadyRunningError(
            f"a service runs on {home.path} already, at {running.url}, pid {running.pid}",
            action="use it, or end it with `lockstep down`",
        )
    home.create()
    command = [
        *(sys.executable, "-m", "lockstep.service"),
        f"--home={home.path}",
        f"--port={settings.port}",
        f"--bucket={settings.bucket}",
        f"--max-running-jobs={settings.max_running_jobs}",
    ]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with home.service_log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        found = find_service(home)
        if found is not None and found.pid == process.pid:
            with contextlib.suppress(UnavailableError):
                Client(found).check_health()
                return found
        if process.poll() is not None:
            raise _start_error(process.returncode, home.service_log, start)
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise UnavailableError(f"the service did not come up within {START_TIMEOUT_S:.0f} s", action=_read_hint(home))


def _start_error(code: int, log: Path, start: int) -> LockstepError:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").strip().splitlines()
    last = next((line for line in reversed(lines) if line.startswith("lockstep.service: ")), None)
    kind = _START_ERRORS.get(code, UnavailableError)
    if last is not None:
        return kind(last.removeprefix("lockstep.service: "))
    return kind(f"the service ended with exit code {code}: {lines[-1] if lines else 'no output'}", action=f"see {log}")


def _read_hint(home: Home) -> str:
    return f"read {home.service_log}"


def down(settings: Settings, *, cancel: bool, progress: Callable[[str], None]) -> None:
    """Ends the service of a home with all that it started: prediction servers, engine, what is left of jobs.

    Works as well where the service died and left the rest behind. Idempotent.

    Args:
        settings: whose home it is.
        cancel: whether running jobs are cancelled first.
        progress: told what is being done, a line each.

    Raises:
        JobsRunningError: jobs run or wait, and `cancel` was not asked for; nothing was changed.
    """
    home = settings.home
    if not home.path.exists():
        return
    running = find_service(home)
    if not cancel:
        _refuse_while_jobs_run(home)
    elif _open_jobs(home):
        if running is None:  # a job is cancelled by the controller, whose service is gone
            running = up(settings)
        progress("cancelling jobs")
        _cancel_jobs(home)
    if running is not None:
        progress(f"ending the service, pid {running.pid}")
        end_process(running.pid, create_time_s=running.create_time_s)
    if home.database.exists():
        progress("ending prediction servers")
        Deployments(store=ModelStore(open_database(f"sqlite:///{home.database}")), folder=home.spool).end_all()
    progress("ending the engine")
    open_cluster(settings.cluster, home=home).shut_down()
    _end_leftovers(home)
    home.address.unlink(missing_ok=True)


def _open_jobs(home: Home) -> list[str]:
    if not home.database.exists():
        return []
    store = JobStore(open_database(f"sqlite:///{home.database}"))
    return [job.job_id for job in store.unfinished() if job.state not in TERMINAL]


def _refuse_while_jobs_run(home: Home) -> None:
    names = _open_jobs(home)
    if names:
        shown = ", ".join(names[:5]) + ("" if len(names) <= 5 else f" and {len(names) - 5} more")
        raise JobsRunningError(
            f"{len(names)} jobs are not over: {shown}",
            action="wait for them, or cancel them with `lockstep down --cancel`",
        )


def _cancel_jobs(home: Home) -> None:
    store = JobStore(open_database(f"sqlite:///{home.database}"))
    for job in store.unfinished():
        if job.state not in TERMINAL:
            with contextlib.suppress(LockstepError):  # it ended meanwhile
                store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="lockstep down --cancel")
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while _open_jobs(home):
        if time.monotonic() > deadline:
            raise JobsRunningError(
                f"jobs did not end within {CANCEL_TIMEOUT_S:.0f} s: {', '.join(_open_jobs(home))}",
                action="see `lockstep status`",
            )
        time.sleep(0.1)


def end_process(pid: int, *, create_time_s: float) -> None:
    """Ends one process, by SIGTERM and after `STOP_TIMEOUT_S` by SIGKILL, if the pid is still that process's."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if abs(process.create_time() - create_time_s) > 1.0:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


def _end_leftovers(home: Home) -> None:
    """Waits for runners to follow their engine, and ends programs whose runner was killed.

    A runner stops its program when its engine goes; what works in this home's spool folder after that is an orphan.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := _working_in(home.spool)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_TIMEOUT_S)


def _working_in(folder: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found
