"""Permissions of local folders if programs run with their own user ids: each job has access only to its own folders.

A program's user owns the folders for the job's outputs while the program runs. Before and after, the service owns the
top folder, which is closed, whatever is below it. The service never writes into these folders, because it could follow
a link that the program made.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, final

from lockstep.errors import InvalidInputError
from lockstep.home import Home
from lockstep.service.security.users import UserPool
from lockstep.service.settings import Settings
from lockstep.service.store import JobKind, JobRecord

SEARCHABLE: Final = 0o711
CLOSED: Final = 0o700
JOBS: Final = "jobs"
MODELS: Final = "models"
REQUEST_LOGS: Final = "request-logs"
"""The folder of a project with sampled requests for predictions. Only the service writes there."""
_STAGED: Final = "packages"


@final
class JobFolders:
    """Opens and closes the folders of jobs.

    Args:
        home: the home of the service.
        bucket: the URL of the service's default bucket.
        pool: the user ids of programs.
    """

    def __init__(self, *, home: Home, bucket: str, pool: UserPool) -> None:
        self._home = home
        self._bucket = Path(bucket).resolve() if bucket.startswith("/") else None  # others have own permissions
        self._pool = pool

    def prepare(self) -> None:
        """Closes the home and the bucket to programs at startup, except for the paths to the programs' own folders."""
        home = self._home
        ways = (home.spool, home.bucket, home.cache)
        for folder in (home.path, *ways, home.cache / "environments"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(SEARCHABLE)
        for entry in (*home.path.iterdir(), *home.cache.iterdir()):
            if entry not in (*ways, home.cache / "environments") and not entry.is_symlink():
                with contextlib.suppress(FileNotFoundError):
                    entry.chmod(stat.S_IMODE(entry.stat().st_mode) & CLOSED)
        if self._bucket is not None:
            self._bucket.mkdir(parents=True, exist_ok=True)
            (self._bucket / _STAGED).mkdir(exist_ok=True)  # the first client that stages code may have another umask
            _close(self._bucket / _STAGED)
            for job in self._bucket.glob(f"*/{JOBS}/*"):
                if job.is_symlink() or not job.is_dir():  # not the folder of a job
                    continue
                self._make_traversable(job)
                for folder in job.iterdir():
                    _close(folder)
            for name in (MODELS, REQUEST_LOGS):
                for folder in self._bucket.glob(f"*/{name}"):
                    _close(folder)

    def close_models(self, project: str) -> None:
        """Creates a project's folder for versions, if it does not exist, and closes it to all programs.

        Only runners access it: they download a version's files for its servers, and upload the servers' logs.
        """
        self._close_for_service(project, MODELS)

    def close_request_logs(self, project: str) -> None:
        """Creates a project's folder for sampled requests, if it does not exist, and closes it to all programs."""
        self._close_for_service(project, REQUEST_LOGS)

    def _close_for_service(self, project: str, name: str) -> None:
        if self._bucket is not None:
            self._make_traversable(self._bucket / project)
            (self._bucket / project / name).mkdir(exist_ok=True, mode=CLOSED)
            _close(self._bucket / project / name)

    def check(self, url: str, *, what: str, project: str) -> None:
        """Rejects a folder for outputs that a job's program could not write to, or must not own.

        Args:
            url: the URL of the folder.
            what: the field that specifies the folder, for error messages.
            project: the project of the job.

        Raises:
            InvalidInputError: If the folder is rejected.
        """
        if not url.startswith("/"):
            return
        path = Path(url).resolve()
        own = None if self._bucket is None else self._bucket / project
        if own is not None and path.is_relative_to(own):
            taken = next((own / name for name in (JOBS, MODELS, REQUEST_LOGS) if path.is_relative_to(own / name)), None)
            if path == own or taken is not None:
                allowed = f"a folder of its own in {own}, not {taken or own / JOBS}"
                raise InvalidInputError(what, received=url, allowed=allowed)
            return
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        if not there.stat().st_mode & 0o002:
            raise InvalidInputError(
                f"{what}: programs run as users of their own, who may not write to {there}",
                received=url,
                allowed=f"a folder in {own or 'the bucket'}, a bucket elsewhere, or a folder that all may write to",
            )

    def open(self, job: JobRecord, *, user: int) -> None:
        """Makes the user of a job's programs the owner of the job's folders.

        Args:
            job: the job.
            user: the user id; nothing else runs as this user.
        """
        if job.kind is JobKind.SERVER:
            self.close_models(job.project)
            return
        logs = Path(job.outputs["logs"])
        if self._bucket is not None and logs.is_relative_to(self._bucket):
            self._make_traversable(logs.parent)
            logs.mkdir(exist_ok=True)
            _close(logs)
        for top in self._output_folders(job):
            self._make_traversable(top.parent)
            top.mkdir(exist_ok=True, mode=CLOSED)
            self._change_owner(top, user)
            os.chmod(top, CLOSED, follow_symlinks=True)
            os.chown(top, user, user, follow_symlinks=False)

    def close(self, job: JobRecord) -> None:
        """Makes the service the owner of a job's folders again, once its programs have ended. Idempotent."""
        for top in self._output_folders(job):
            with contextlib.suppress(FileNotFoundError):
                os.chown(top, os.geteuid(), os.getegid(), follow_symlinks=False)
                os.chmod(top, CLOSED)

    def _output_folders(self, job: JobRecord) -> Iterator[Path]:
        """Yields the folders in the service's bucket for a job's outputs."""
        if self._bucket is None:
            return
        named = _requested_output_folder(job.training_input)
        urls = [named] if named is not None else [url for kind, url in job.outputs.items() if kind != "logs"]
        for url in urls:
            if url.startswith("/") and Path(url).resolve().is_relative_to(self._bucket / job.project):
                yield Path(url).resolve()

    def _make_traversable(self, folder: Path) -> None:
        """Creates a folder in the bucket. Others may pass through it and the folders above it, but not list them."""
        assert self._bucket is not None
        for part in (*reversed(folder.parents), folder):
            if part.is_relative_to(self._bucket):
                part.mkdir(exist_ok=True)
                part.chmod(SEARCHABLE)

    def _change_owner(self, top: Path, user: int) -> None:
        """Changes the owner of files of an earlier attempt to the new user. Only files of the pool's users change."""
        for _, folders, files, at in os.fwalk(top):
            for name in (*folders, *files):
                found = os.stat(name, dir_fd=at, follow_symlinks=False)
                if found.st_uid in self._pool and found.st_uid != user:
                    os.chown(name, user, user, dir_fd=at, follow_symlinks=False)


def job_folders(settings: Settings) -> JobFolders | None:
    """Returns the `JobFolders` of a service; None if programs run as the service's own user."""
    if settings.users is None:
        return None
    return JobFolders(home=settings.home, bucket=settings.bucket, pool=settings.users)


def _requested_output_folder(training_input: Mapping[str, object]) -> str | None:
    """Returns the folder that a job specifies for its outputs; None if it specifies none."""
    own = training_input.get("lockstep")
    named = training_input.get("jobDir") or (own.get("baseOutputDirectory") if isinstance(own, dict) else None)
    return str(named) if named else None


def _close(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(CLOSED)
