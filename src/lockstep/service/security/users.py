"""User ids for jobs' programs: the pool, whether it can be used on this machine, and the choice of an id for a job."""

from __future__ import annotations

import os
import pwd
import re
import site
import sys
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.home import Home

AUTOMATIC: Final = "auto"
NO_POOL: Final = "none"

_POOL: Final = re.compile(r"(\d{1,10})-(\d{1,10})")
_MAX_ID: Final = 2**31 - 1


@final
@dataclass(frozen=True, kw_only=True)
class UserPool:
    """A range of user ids that jobs' programs run as. An id belongs to one job at a time, with the equal group id.

    Attributes:
        first: the first id.
        last: the last id, which is included.
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses ``FIRST-LAST``.

        Raises:
            InvalidInputError: If the text has another form, or if the range includes the id of an account.
        """
        found = _POOL.fullmatch(text)
        pool = None if found is None else cls(first=int(found[1]), last=int(found[2]))
        if pool is None or not 1000 <= pool.first <= pool.last <= _MAX_ID:
            allowed = f"FIRST-LAST, from 1000 to {_MAX_ID}, or {AUTOMATIC}, or {NO_POOL}"
            raise InvalidInputError("--run-as", received=text, allowed=allowed)
        owned = next((entry for entry in pwd.getpwall() if entry.pw_uid in pool), None)
        if owned is not None:
            raise InvalidInputError("--run-as", received=text, allowed=f"ids without {owned.pw_name}'s, {owned.pw_uid}")
        return pool

    def __contains__(self, user: int) -> bool:
        return self.first <= user <= self.last

    def choose(self, job_uid: str, *, taken: Collection[int]) -> int | None:
        """Returns an id for a job; None if all ids are taken.

        A job gets the same id each time, unless another job has it. Jobs are spread over the ids by a hash, so an id is
        rarely reused soon.

        Args:
            job_uid: the uid of the job.
            taken: the ids of other jobs.
        """
        size = self.last - self.first + 1
        start = zlib.crc32(job_uid.encode()) % size
        candidates = (self.first + (start + number) % size for number in range(size))
        return next((user for user in candidates if user not in taken), None)


DEFAULT_POOL: Final = UserPool(first=59000, last=59999)


def decide_users(asked: str, *, home: Home, bucket: str, nodes_are_here: bool) -> tuple[UserPool | None, str]:
    """Returns the pool of user ids for jobs' programs, and a description of the choice.

    The pool is None if programs run as the service's own user.

    Args:
        asked: ``auto``, ``none``, or a pool.
        home: the home of the service.
        bucket: the URL of its default bucket.
        nodes_are_here: whether the engine's nodes are this machine.

    Raises:
        InvalidInputError: If `asked` is a pool that cannot be used.
    """
    own = f"as the service's own user, {os.geteuid()}"
    if asked == NO_POOL:
        return None, f"{own}, as was asked"
    pool = DEFAULT_POOL if asked == AUTOMATIC else UserPool.parse(asked)
    obstacle = _why_unavailable(home=home, bucket=bucket, nodes_are_here=nodes_are_here)
    if obstacle is None and asked == AUTOMATIC and any(entry.pw_uid in pool for entry in pwd.getpwall()):
        obstacle = f"accounts have ids of {pool.first}-{pool.last}: name others with --run-as"
    if obstacle is None:
        return pool, f"each job as a user of its own, {pool.first}-{pool.last}"
    if asked != AUTOMATIC:
        raise InvalidInputError(f"--run-as: {obstacle}", received=asked)
    return None, f"{own}: {obstacle}"


def users_warning(asked: str, *, pool: UserPool | None, note: str, nodes_are_here: bool) -> str:
    """Returns a warning to the operator if programs run as root by default and not by request, else "".

    Args:
        asked: ``auto``, ``none``, or a pool.
        pool: the pool that `decide_users` returned.
        note: the description that `decide_users` returned.
        nodes_are_here: whether the engine's nodes are this machine.
    """
    if asked != AUTOMATIC or pool is not None or not nodes_are_here or sys.platform != "linux" or os.geteuid() != 0:
        return ""
    return (
        f"programs run {note}; anyone who may submit jobs has root's rights on this machine. Install Python and "
        "Lockstep, and keep home and bucket, where everybody may enter, such as /opt, and start again; or accept it "
        "with --run-as none"
    )


def _why_unavailable(*, home: Home, bucket: str, nodes_are_here: bool) -> str | None:
    """Returns why programs cannot run as other users on this machine; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux may start programs as other users"
    if not nodes_are_here:
        return "the engine's nodes are other machines, with folders and users of their own"
    needed = [Path(sys.executable), Path(os.__file__), Path(lockstep.__file__), *map(Path, site.getsitepackages())]
    for path in (*needed, *(path.resolve() for path in needed)):
        barred = first_closed_folder(path if path.is_dir() else path.parent)
        if barred is not None:
            return f"they could not run {path}: only root may enter {barred}"
    local = [home.path.parent, *([Path(bucket).parent] if bucket.startswith("/") else [])]
    for folder in local:
        barred = first_closed_folder(folder.resolve(), ignore=home.path.resolve())
        if barred is not None:
            return f"they could not reach {folder}: only root may enter {barred}"
    return None


def first_closed_folder(folder: Path, *, ignore: Path | None = None) -> Path | None:
    """Returns the first folder on a path that other users may not enter; None if there is none.

    Args:
        folder: the end of the path. Folders that do not exist yet are ignored.
        ignore: a folder on the path to ignore, because it will be opened.
    """
    for part in _path_to(folder):
        if part != ignore and part.is_dir() and not part.stat().st_mode & 0o001:
            return part
    return None


def _path_to(folder: Path) -> Iterable[Path]:
    return [*reversed(folder.parents), folder]
