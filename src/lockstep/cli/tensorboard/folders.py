"""The folder that TensorBoard reads: one folder for each job, a link to its bucket or a copy that is kept in step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from lockstep.cli.artifacts import target_of
from lockstep.cli.trials import is_search
from lockstep.errors import InvalidInputError, MissingInputError, NotFoundError
from lockstep.jobs.running.states import TERMINAL
from lockstep.storage import local_path
from lockstep.storage.temporaries import temporary_name

if TYPE_CHECKING:
    from lockstep.client import Client

OUTPUT: Final = "tensorboard"
"""The output of a job that has its event files."""
_CHUNK_BYTES: Final = 1 << 20


def folder_here(job: Mapping[str, Any], *, is_on_this_machine: bool) -> Path | None:
    """Returns the folder of a job's event files if this process can read it, else None.

    Args:
        job: the job, in the contract's JSON form.
        is_on_this_machine: whether the service runs on this machine, so that paths mean the same to both.

    Raises:
        InvalidInputError: the job has no event files: it is a batch prediction.
    """
    url = job["lockstep"]["outputs"].get(OUTPUT)
    if url is None:
        raise InvalidInputError(f"job {job['jobId']} is a batch prediction, which writes no event files")
    path = local_path(url) if is_on_this_machine else None
    if path is None or not os.path.isdir(path) or not os.access(path, os.R_OK | os.X_OK):
        return None
    return Path(path)


@final
class Mirror:
    """A copy of a job's event files.

    TensorBoard keeps files open and reads on where it stopped, so a file that has grown is appended to.

    Args:
        client: a client of the service.
        job: the job's name.
        folder: the folder of the copy.
    """

    def __init__(self, client: Client, job: str, *, folder: Path) -> None:
        self._client = client
        self._job = job
        self._folder = folder
        self._is_complete = False

    def sync(self) -> int:
        """Fetches what is new, until the job has ended and everything is there. Returns the number of changed files.

        Raises:
            LockstepError: the service or its bucket does not answer, or a file's name leads out of the folder.
        """
        if self._is_complete:
            return 0
        is_over = self._client.job(self._job)["state"] in TERMINAL  # asked first: later there are no new files
        num_changed = 0
        for artifact in self._client.artifacts(self._job):
            if artifact["path"].partition("/")[0] != OUTPUT:
                continue
            target = target_of(artifact["path"].partition("/")[2], folder=self._folder)
            have = target.stat().st_size if target.is_file() else 0
            if artifact["sizeBytes"] != have or not target.exists():
                self._fetch(artifact["path"], target=target, have=have)
                num_changed += 1
        self._is_complete = is_over
        return num_changed

    def _fetch(self, path: str, *, target: Path, have: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="lockstep-events-") as aside:  # not where TensorBoard looks for files
            fetched = Path(aside, temporary_name())
            try:
                self._client.fetch_artifact(self._job, path, to=fetched)
            except (NotFoundError, MissingInputError):  # the program has removed it
                return
            if fetched.stat().st_size < have:  # written anew
                target.unlink()
                have = 0
            with fetched.open("rb") as source, target.open("ab") as copy:
                source.seek(have)
                while data := source.read(_CHUNK_BYTES):
                    copy.write(data)


@final
class Runs:
    """The folder that TensorBoard reads: one folder for each job, and for each trial of a search.

    Args:
        client: a client of the service.
        names: the names of the jobs.
        folder: an empty folder.
    """

    def __init__(self, client: Client, names: Iterable[str], *, folder: Path) -> None:
        self.folder = folder
        self._client = client
        self._shown: set[str] = set()
        self._searches: list[str] = []
        self._mirrors: list[Mirror] = []
        for name in dict.fromkeys(names):
            job = client.job(name)
            if is_search(job):
                self._searches.append(name)
            else:
                self._add(job)

    @property
    def may_change(self) -> bool:
        """Whether `sync` has anything to do: some files are not on this machine, or a search may begin new trials."""
        return bool(self._mirrors or self._searches)

    def sync(self) -> None:
        """Adds the trials that have begun, and fetches what is new.

        Raises:
            LockstepError: the event files of a job cannot be fetched.
        """
        for name in self._searches.copy():
            is_over = self._client.job(name)["state"] in TERMINAL  # asked first: later no trial begins
            for trial in self._client.trials(name):
                if trial["jobId"] not in self._shown:
                    self._add(self._client.job(trial["jobId"]))
            if is_over:
                self._searches.remove(name)
        for mirror in self._mirrors:
            mirror.sync()

    def _add(self, job: Mapping[str, Any]) -> None:
        name = job["jobId"]
        place = self.folder / name
        here = folder_here(job, is_on_this_machine=self._client.is_on_this_machine)
        if here is not None:
            place.symlink_to(here, target_is_directory=True)
        else:
            place.mkdir()
            self._mirrors.append(Mirror(self._client, name, folder=place))
        self._shown.add(name)
