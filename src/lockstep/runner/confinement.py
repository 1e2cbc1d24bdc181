"""Running a program as a user of its own: what is taken from it, and what it is given."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from lockstep.errors import LockstepError

MAX_PROCESSES: Final = 32768
"""How many processes and threads a job's user may have on a node: a fork bomb ends, a training does not."""

SEARCHABLE: Final = 0o711
CLOSED: Final = 0o700

_PR_SET_NO_NEW_PRIVS: Final = 38  # from Linux's prctl.h
_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"


def give_up_privileges() -> None:
    """Sees to it that whatever this process starts gets no privileges by what it runs, and leaves no core dumps.

    Both stay with all that is started from here on; called before there are other threads.

    Raises:
        LockstepError: this process is not root, so that it cannot start a program as another user.
    """
    if os.geteuid() != 0:
        raise LockstepError("its program is to run as another user, and its runner is not root")
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise LockstepError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold secrets
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = MAX_PROCESSES if most == resource.RLIM_INFINITY else min(most, MAX_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def open_way(spool: Path) -> None:
    """Lets a program pass to its own folders in a replica's spool, and see nothing else there."""
    for entry in spool.iterdir():  # a log of this process's own, say, whatever umask it was made with
        entry.chmod(stat.S_IMODE(entry.stat().st_mode) & CLOSED)
    for folder in (spool.parent, spool):
        folder.chmod(SEARCHABLE)


def give(path: Path, *, user: int) -> None:
    """Gives a folder with all that is in it to a user; made if absent. Nobody else may be at work in it.

    Args:
        path: the folder.
        user: the user's id, and its group's.
    """
    path.mkdir(exist_ok=True)
    path.chmod(CLOSED)
    for _, folders, files, at in os.fwalk(path):
        for name in (*folders, *files):
            os.chown(name, user, user, dir_fd=at, follow_symlinks=False)
    os.chown(path, user, user)


def take(path: Path) -> None:
    """Makes a folder with all that is in it this user's own, which others may read and not change."""
    os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
    path.chmod(0o755)
    for _, folders, files, at in os.fwalk(path):
        for name in (*folders, *files):
            os.chown(name, os.geteuid(), os.getegid(), dir_fd=at, follow_symlinks=False)
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if not stat.S_ISLNK(mode):  # what it points to need not be the user's; links to folders stand among folders
                os.chmod(name, 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644, dir_fd=at)


def own_variables(spool: Path, *, user: int, env: Mapping[str, str], sockets: Iterable[Path]) -> dict[str, str]:
    """Gives a program's user a home, a folder for temporary files, the node's credentials, and sockets to write to.

    Args:
        spool: the replica's spool folder.
        user: the user's id.
        env: the program's variables so far.
        sockets: made by this user, for the program.

    Returns:
        Variables that replace those of the node.
    """
    home, temporary = spool / "home", spool / "tmp"
    variables = {"HOME": str(home), "TMPDIR": str(temporary), "USER": "job", "LOGNAME": "job"}
    home.mkdir(exist_ok=True, mode=CLOSED)
    key_file = env.get(_CREDENTIALS)
    if key_file is not None and Path(key_file).is_file():  # which is for this user's eyes alone
        copy = home / "google-credentials.json"
        shutil.copyfile(key_file, copy)
        copy.chmod(0o600)
        variables[_CREDENTIALS] = str(copy)
    for folder in (home, temporary):
        give(folder, user=user)
    for path in sockets:
        if path.is_socket():
            os.chown(path, user, user)
    return variables
