"""Bringing the service of a home up and down, from outside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from lockstep import errors
from lockstep.client import Client, RunningService, find_service
from lockstep.client.addresses import CLIENT_VARIABLES
from lockstep.clusters import AbstractCluster, open_cluster, read_choice
from lockstep.containers import open_engine, reap
from lockstep.errors import (
    AlreadyRunningError,
    ContainerEngineError,
    EngineError,
    JobsRunningError,
    LockstepError,
    UnavailableError,
    WrongStateError,
)
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.orders import SPOOL_VARIABLE
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.jobs.security.access import HOME_LABEL
from lockstep.processes import ProcessIdentity, find_marked
from lockstep.service.control.provisioner import release_all
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.process.keeper import end_keeper, find_keeper
from lockstep.service.process.turns import alone, is_locked
from lockstep.service.settings import BUDGETS, QUOTAS, Settings, home_name
from lockstep.service.store import Holder, JobStore, ModelStore, NodeStore, excluding, holder_of, open_database

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0
CANCEL_TIMEOUT_S: Final = 60.0
NUM_ROUNDS: Final = 3
"""How often `down` begins again where jobs were submitted meanwhile."""

_START_ERRORS: Final = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LockstepError)
}


def up(settings: Settings) -> RunningService:
    """Starts the service of a home, in a process session of its own, with its keeper; returns when it answers.

    Another `up` or `down` of the home is waited for.

    Raises:
        AlreadyRunningError: one runs already.
        PortInUseError: the port that was asked for is taken.
        StorageWriteError: the home or the bucket cannot be written.
        EngineError: the engine did not come up.
        UnavailableError: it did not come up; the message has its last line.
    """
    settings.home.create()
    with alone(settings.home) as lock:
        return _start(settings, lock=lock)


def _start(settings: Settings, *, lock: int) -> RunningService:
    home = settings.home
    running = find_service(home)
    if running is not None:
        raise AlreadyRunningError(
            f"a service runs on {home.path} already, at {running.address.url}, pid {running.pid}",
            action="use it, or end it with `lockstep down`",
        )
    end_keeper(home)  # one that waits to start a service that died
    command = [
        *(sys.executable, "-P", "-m", "lockstep.service.process.keeper"),  # -P: see `service_command`
        *(str(home.path), str(lock)),
        *service_command(settings),
    ]
    env = service_environment(os.environ)
    with home.service_log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        found = find_service(home)
        if found is not None:
            with contextlib.suppress(UnavailableError), Client(found.address) as client:
                client.check_health()
                return found
        if process.poll() is not None:
            raise _start_error(process.returncode, home.service_log, start)
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # the keeper and the service
    process.wait()
    raise UnavailableError(f"the service did not come up within {START_TIMEOUT_S:.0f} s", action=_read_hint(home))


def service_command(settings: Settings) -> list[str]:
    """Returns the command that runs a service with these settings."""
    return [
        *(sys.executable, "-P", "-m", "lockstep.service"),  # -P: the working folder is not a place to import from
        f"--home={settings.home.path}",
        f"--host={settings.host}",
        f"--port={settings.port}",
        *(() if settings.tls_certificate is None else (f"--tls-certificate={settings.tls_certificate}",)),
        *(() if settings.tls_key is None else (f"--tls-key={settings.tls_key}",)),
        f"--bucket={settings.bucket}",
        f"--database={settings.database}",
        f"--max-running-jobs={settings.max_running_jobs}",
        f"--run-as={settings.run_as}",
        f"--quotas={QUOTAS.dump_json(dict(settings.quotas)).decode()}",
        f"--budgets={BUDGETS.dump_json(dict(settings.budgets)).decode()}",
        *(() if settings.prices is None else (f"--prices={settings.prices}",)),
        *(() if settings.webhooks is None else (f"--webhooks={settings.webhooks}",)),
        *(f"--allow-webhooks-to={text}" for text in settings.allow_webhooks_to),
    ]


def service_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what a service gets of its starter's environment.

    Whose key it is that starts a service is no business of it, its engine and its jobs.
    """
    left_out = {"PYTHONDONTWRITEBYTECODE", *CLIENT_VARIABLES}
    return {name: value for name, value in env.items() if name not in left_out}


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

    Works as well where the service died and left the rest behind. Idempotent. Another `up` or `down` of the home is
    waited for, and so is a service that is just starting.

    Args:
        settings: whose home it is.
        cancel: whether jobs that are not over are cancelled first.
        progress: told what is being done, a line each.

    Raises:
        JobsRunningError: jobs run or wait, and `cancel` was not asked for; nothing was changed.
        StorageWriteError: the home cannot be written.
        CorruptDataError: its choice of a cluster cannot be read; the service has ended, its engine has not.
    """
    home = settings.home
    if not home.path.exists():
        return
    home.create()
    with alone(home) as lock:
        _check_not_of_systemd(home)
        running = _settled_service(home)
        with _database(settings) as database:
            other = None if database is None else _other_holder(settings, database)
            if other is not None and running is not None:
                progress(f"ending the service, pid {running.pid}; the jobs are those of {other.description}")
                end_keeper(home)
                _kill([running.process], what="the service")
            elif database is not None and other is None:
                _end_with_jobs(settings, database, cancel=cancel, running=running, lock=lock, progress=progress)
            end_keeper(home)  # where the service had died
            # Not before: where the choice cannot be read any more, another one can be made once no service runs.
            catalogue = load_catalogue()
            choice = read_choice(home, catalogue=catalogue)
            cluster = open_cluster(choice, home=home, catalogue=catalogue)
            if database is not None and other is None and not choice.is_owned:
                _clear(cluster, JobStore(database), progress=progress)
            if cluster.provisioning is not None and database is not None:
                release_all(NodeStore(database), cluster.provisioning, is_own=other is None, progress=progress)
        progress("ending the engine" if choice.is_owned else "leaving the engine")
        cluster.shut_down()
        _end_leftovers(home)
        for path in (home.address, home.service_end):  # how it died before is no matter of its next life
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[Engine | None]:
    """Gives the opened database of a service, None where none was ever made."""
    if not settings.database and not settings.home.database.exists():
        yield None
        return
    database = open_database(settings.database_url)
    try:
        yield database
    finally:
        database.dispose()


def _other_holder(settings: Settings, database: Engine) -> Holder | None:
    """Returns the service whose the jobs of a shared database are, where that is another home's."""
    holder = holder_of(database) if settings.database else None
    if holder is None or holder.expired or holder.home == home_name(settings.home):
        return None
    return holder


def _end_with_jobs(
    settings: Settings,
    database: Engine,
    *,
    cancel: bool,
    running: RunningService | None,
    lock: int,
    progress: Callable[[str], None],
) -> None:
    """Ends the service and its prediction servers, once all jobs are over."""
    for number in range(NUM_ROUNDS):
        if cancel:
            running = _cancel_jobs(settings, database, running=running, lock=lock, progress=progress)
        left = _end_service(database, running, home=settings.home, progress=progress)
        if not left:
            break
        if not cancel or number + 1 == NUM_ROUNDS:
            raise _jobs_running(left)
    progress("ending prediction servers")
    Deployments(store=ModelStore(database), folder=settings.home.spool / "servers").end_all()


def _clear(cluster: AbstractCluster, store: JobStore, *, progress: Callable[[str], None]) -> None:
    """Takes what is left of the jobs' gangs from an engine that goes on without this service."""
    left = store.placed_jobs()
    try:
        if left:
            cluster.start()
        for job in left:
            cluster.forget(f"{job.uid}-{job.attempt}")
            store.update(job.uid, gang_released=True)
    except EngineError as error:
        progress(f"what is left of {len(left)} jobs stays on the engine: {error}")


def _check_not_of_systemd(home: Home) -> None:
    keeper = find_keeper(home)
    if keeper is not None and keeper.is_systemd:
        raise WrongStateError(
            f"the service of {home.path} is kept by systemd, which would start it again",
            action="end it with `systemctl stop`, or `systemctl --user stop`, and its unit's name; then what it "
            "started, with `lockstep down`",
        )


def _settled_service(home: Home) -> RunningService | None:
    """Returns the running service, None if none runs; waits for one that starts or ends: it holds the home's lock."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (running := find_service(home)) is None and is_locked(home.lock):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the service of {home.path} has neither come up nor ended within {START_TIMEOUT_S:.0f} s",
                action=_read_hint(home),
            )
        time.sleep(0.05)
    return running


def _jobs_running(names: list[str]) -> JobsRunningError:
    shown = ", ".join(names[:5]) + ("" if len(names) <= 5 else f" and {len(names) - 5} more")
    return JobsRunningError(
        f"{len(names)} {'job is' if len(names) == 1 else 'jobs are'} not over: {shown}",
        action="wait for them, or cancel them with `lockstep down --cancel`",
    )


def _cancel_jobs(
    settings: Settings,
    database: Engine,
    *,
    running: RunningService | None,
    lock: int,
    progress: Callable[[str], None],
) -> RunningService | None:
    """Cancels every job and waits until none is left; returns the service that did it, None if there was none to do."""
    store = JobStore(database)
    unfinished = store.unfinished()
    if not unfinished:
        return running
    progress("cancelling jobs")
    for job in unfinished:
        if job.state is JobState.CANCELLING:  # why it ends is what was asked for first
            continue
        with contextlib.suppress(WrongStateError):  # it ended meanwhile
            by = f"by {HOME_LABEL}"
            reason = EndReason(kind=EndKind.CANCELLED, details=(by, "lockstep down --cancel"))
            detail = f"cancelled {by}: lockstep down --cancel"
            store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, end_reason=str(reason))
    if running is None:  # a job is ended by the controller, whose service is gone; it finds none that it could start
        running = _start(settings, lock=lock)
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    uids = {job.uid for job in unfinished}
    while left := [job.job_id for job in store.unfinished() if job.uid in uids]:
        if time.monotonic() > deadline:
            raise JobsRunningError(
                f"jobs did not end within {CANCEL_TIMEOUT_S:.0f} s: {', '.join(left)}",
                action="see `lockstep status`",
            )
        time.sleep(0.1)
    return running


def _end_service(
    database: Engine, running: RunningService | None, *, home: Home, progress: Callable[[str], None]
) -> list[str]:
    """Ends the service, its keeper first, if every job is over; returns the names of those that are not."""
    with excluding(database):  # no job is submitted between the look and the end
        unfinished = JobStore(database).unfinished()
        if running is not None and not unfinished:
            progress(f"ending the service, pid {running.pid}")
            end_keeper(home)
            # Not SIGTERM: it would wait for the database. It can be killed between any two lines.
            _kill([running.process], what="the service")
    return [job.job_id for job in unfinished]


def _kill(processes: list[ProcessIdentity], *, what: str) -> None:
    for process in processes:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    left = [process for process in processes if not process.wait(timeout_s=max(0.0, deadline - time.monotonic()))]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise UnavailableError(f"{what} does not end, process id {pids}", action="end it by hand")


def _end_leftovers(home: Home) -> None:
    """Waits for runners to follow their engine, and ends programs and containers whose runner was killed.

    A runner stops its program when its engine goes; what carries the mark of this home's spool after that is an orphan.
    """
    spool = home.spool.resolve()

    def marked() -> list[ProcessIdentity]:
        return find_marked(SPOOL_VARIABLE, accept=lambda mark: Path(mark).resolve().is_relative_to(spool))

    deadline = time.monotonic() + STOP_TIMEOUT_S
    while marked() and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := marked()) and time.monotonic() < deadline:  # one that is ended may just have started another
        _kill(left, what="a job's process")
    with contextlib.suppress(ContainerEngineError):  # where none answers, none has anything to remove
        reap(open_engine(), accept=lambda labels: Path(labels.spool).resolve().is_relative_to(spool))
