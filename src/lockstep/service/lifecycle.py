"""Starts and stops the service of a home, from another process."""

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
from lockstep.jobs.machines.catalogue import Catalogue, load_catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.orders import SPOOL_VARIABLE
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.jobs.security.access import HOME_LABEL
from lockstep.processes import ProcessIdentity, find_marked
from lockstep.service.control.ends import JobEnds
from lockstep.service.control.evidence import Evidence
from lockstep.service.control.provisioner import release_all
from lockstep.service.process.keeper import end_keeper, find_keeper
from lockstep.service.process.lifecycle_lock import is_locked, lifecycle_lock
from lockstep.service.settings import BUDGETS, QUOTAS, Settings, home_name
from lockstep.service.store import Holder, JobStore, NodeStore, excluding, holder_of, open_database

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0
CANCEL_TIMEOUT_S: Final = 60.0
MAX_CANCEL_ROUNDS: Final = 3
"""The maximum number of times that `down` cancels jobs. It cancels again if jobs were submitted meanwhile."""

_START_ERRORS: Final = {
    int(kind.exit_code): kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LockstepError)
}


def up(settings: Settings) -> RunningService:
    """Starts the service of a home with its keeper, in a process session of its own. Returns when the service answers.

    Waits for another `up` or `down` of the home.

    Raises:
        AlreadyRunningError: If a service of the home runs already.
        PortInUseError: If the requested port is in use.
        StorageWriteError: If the home or the bucket cannot be written.
        EngineError: If the engine did not start.
        UnavailableError: If the service did not start for another reason; the message has the last line of its log, or
            says where the log is.
    """
    settings.home.create()
    with lifecycle_lock(settings.home) as lock:
        return _start(settings, lock=lock)


def _start(settings: Settings, *, lock: int) -> RunningService:
    home = settings.home
    running = find_service(home)
    if running is not None:
        raise AlreadyRunningError(
            f"a service runs on {home.path} already, at {running.address.url}, pid {running.pid}",
            action="use it, or end it with `lockstep down`",
        )
    end_keeper(home)  # one that is about to restart a service that died
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
    raise UnavailableError(f"the service did not start within {START_TIMEOUT_S:.0f} s", action=_read_hint(home))


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
    """Returns the environment variables that a service inherits from the process that starts it.

    The variables of the client (such as a key) are left out: the service, its engine and its jobs must not have them.
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
    """Stops the service of a home and everything it started: prediction servers, engine, and what is left of jobs.

    Also works if the service has died and left the rest behind. Idempotent. Waits for another `up` or `down` of the
    home, and for a service that is just starting.

    Args:
        settings: the settings, whose home is that of the service.
        cancel: whether to cancel unfinished jobs first.
        progress: called with a line of text for each action.

    Raises:
        JobsRunningError: If there are unfinished jobs and `cancel` is False (nothing was changed), or if cancelled jobs
            do not end in time.
        WrongStateError: If systemd keeps the service.
        StorageWriteError: If the home cannot be written.
        CorruptDataError: If the home's choice of a cluster cannot be read. The service has ended, but its engine has
            not.
    """
    home = settings.home
    if not home.path.exists():
        return
    home.create()
    with lifecycle_lock(home) as lock:
        _check_not_of_systemd(home)
        running = _wait_for_service(home)
        with _database(settings) as database:
            other = None if database is None else _other_holder(settings, database)
            if other is not None and running is not None:
                progress(f"ending the service, pid {running.pid}; the jobs are those of {other.description}")
                end_keeper(home)
                _kill([running.process], what="the service")
            elif database is not None and other is None:
                _end_with_jobs(settings, database, cancel=cancel, running=running, lock=lock, progress=progress)
            end_keeper(home)  # in case the service had died
            # Not before: if the choice cannot be read, the user can make another one, once no service runs.
            catalogue = load_catalogue()
            choice = read_choice(home, catalogue=catalogue)
            cluster = open_cluster(choice, home=home, catalogue=catalogue)
            if database is not None and other is None and not choice.is_owned:
                _release_gangs(cluster, JobStore(database), progress=progress)
            if cluster.provisioning is not None and database is not None:
                release_all(NodeStore(database), cluster.provisioning, is_own=other is None, progress=progress)
            progress("ending the engine" if choice.is_owned else "leaving the engine")
            cluster.shut_down()
            _end_leftovers(home)
            if database is not None and other is None:
                _record_ends_of_servers(database, settings=settings, cluster=cluster, catalogue=catalogue)
        for path in (home.address, home.service_end):  # an earlier death does not concern the next service
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[Engine | None]:
    """Opens the database of a service; yields None if it was never created."""
    if not settings.database and not settings.home.database.exists():
        yield None
        return
    database = open_database(settings.database_url)
    try:
        yield database
    finally:
        database.dispose()


def _other_holder(settings: Settings, database: Engine) -> Holder | None:
    """Returns the holder of a shared database's lease if it is another home's service, else None."""
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
    """Ends the service once all jobs are over."""
    for number in range(MAX_CANCEL_ROUNDS):
        if cancel:
            running = _cancel_jobs(settings, database, running=running, lock=lock, progress=progress)
        left = _end_service(database, running, home=settings.home, progress=progress)
        if not left:
            break
        if not cancel or number + 1 == MAX_CANCEL_ROUNDS:
            raise _jobs_running(left)


def _release_gangs(cluster: AbstractCluster, store: JobStore, *, progress: Callable[[str], None]) -> None:
    """Removes what is left of the jobs' gangs from an engine that continues without this service."""
    left = store.placed_jobs()
    try:
        if left:
            cluster.start()
        for job in left:
            cluster.forget(f"{job.uid}-{job.attempt}")
            store.update(job.uid, gang_released=True)
    except EngineError as error:
        progress(f"the engine still holds resources of {len(left)} jobs: {error}")


def _record_ends_of_servers(
    database: Engine, *, settings: Settings, cluster: AbstractCluster, catalogue: Catalogue
) -> None:
    """Records that the prediction servers ended with the service. The next service starts others for their versions."""
    store = JobStore(database)
    ends = JobEnds(
        store=store,
        cluster=cluster,
        catalogue=catalogue,
        evidence=Evidence(clock=time.time),
        settings=settings,
        provisioner=None,
        clock=time.time,
    )
    reason = str(EndReason(kind=EndKind.CANCELLED, details=("lockstep down",)))
    for job in store.servers():
        if job.state not in (JobState.CANCELLING, *TERMINAL):
            detail = "the service was ended: lockstep down"
            job = store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, end_reason=reason)
        if job.state is JobState.CANCELLING:
            ends.record_end(
                job, JobEvent.CANCELLED, None, detail="it ended with the service", end_reason=job.end_reason
            )
        store.update(job.uid, gang_released=True)


def _check_not_of_systemd(home: Home) -> None:
    keeper = find_keeper(home)
    if keeper is not None and keeper.is_systemd:
        raise WrongStateError(
            f"the service of {home.path} is kept by systemd, which would restart it",
            action="end it with `systemctl stop`, or `systemctl --user stop`, and its unit's name; then what it "
            "started, with `lockstep down`",
        )


def _wait_for_service(home: Home) -> RunningService | None:
    """Returns the running service; None if none runs. Waits for a service that starts or ends: it locks the home."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (running := find_service(home)) is None and is_locked(home.lock):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the service of {home.path} has neither started nor ended within {START_TIMEOUT_S:.0f} s",
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
    """Cancels every unfinished job, and waits until all have ended. Starts a service for it if none runs.

    Returns:
        The running service; None if no service runs and there was nothing to cancel.
    """
    store = JobStore(database)
    unfinished = store.unfinished()
    if not unfinished:
        return running
    progress("cancelling jobs")
    for job in unfinished:
        if job.state is JobState.CANCELLING:  # the first request decides the end reason
            continue
        with contextlib.suppress(WrongStateError):  # it ended meanwhile
            by = f"by {HOME_LABEL}"
            reason = EndReason(kind=EndKind.CANCELLED, details=(by, "lockstep down --cancel"))
            detail = f"cancelled {by}: lockstep down --cancel"
            store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, end_reason=str(reason))
    if running is None:  # the controller ends jobs; it will find none to start
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
    """Ends the keeper and the service if every job is over; returns the names of the jobs that are not over."""
    with excluding(database):  # no job is submitted between the check and the end
        unfinished = JobStore(database).unfinished()
        if running is not None and not unfinished:
            progress(f"ending the service, pid {running.pid}")
            end_keeper(home)
            # Not SIGTERM: the service would wait for the database. It is safe to kill at any line.
            _kill([running.process], what="the service")
    return [job.job_id for job in unfinished]


def _kill(processes: list[ProcessIdentity], *, what: str) -> None:
    for process in processes:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    left = [process for process in processes if not process.wait(timeout_s=max(0.0, deadline - time.monotonic()))]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise UnavailableError(f"{what} does not end, process id {pids}", action="kill it manually")


def _end_leftovers(home: Home) -> None:
    """Waits until runners have ended after their engine, and ends programs and containers whose runner was killed.

    A runner stops its program when its engine ends. A process that still carries the mark of this home's spool after
    that is an orphan.
    """
    spool = home.spool.resolve()

    def marked() -> list[ProcessIdentity]:
        return find_marked(SPOOL_VARIABLE, accept=lambda mark: Path(mark).resolve().is_relative_to(spool))

    deadline = time.monotonic() + STOP_TIMEOUT_S
    while marked() and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := marked()) and time.monotonic() < deadline:  # a process may have started another just before its end
        _kill(left, what="a job's process")
    with contextlib.suppress(ContainerEngineError):  # without a container engine, there is no container
        reap(open_engine(), accept=lambda labels: Path(labels.spool).resolve().is_relative_to(spool))
