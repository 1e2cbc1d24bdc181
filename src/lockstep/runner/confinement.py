"""Prepares the node for a program that runs as its own user: restricts its access, and gives it what it needs."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from lockstep.processes.confinement import CLOSED, SEARCHABLE, change_owner

_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"


def open_path_to_work(spool: Path) -> None:
    """Lets a program reach its own folders in a replica's spool, and see nothing else there."""
    for entry in spool.iterdir():  # such as a log of this process, whatever its umask
        entry.chmod(stat.S_IMODE(entry.stat().st_mode) & CLOSED)
    for folder in (spool.parent, spool):
        folder.chmod(SEARCHABLE)


def take_ownership(path: Path) -> None:
    """Makes this user the owner of a folder and everything in it, which others may then read but not change."""
    os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
    path.chmod(0o755)
    for _, folders, files, at in os.fwalk(path):
        for name in (*folders, *files):
            os.chown(name, os.geteuid(), os.getegid(), dir_fd=at, follow_symlinks=False)
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if not stat.S_ISLNK(mode):  # a target may be another user's; `folders` has links too
                os.chmod(name, 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644, dir_fd=at)


def user_variables(spool: Path, *, user: int, env: Mapping[str, str], sockets: Iterable[Path]) -> dict[str, str]:
    """Gives a program's user a home, a folder for temporary files, the node's credentials, and sockets to write to.

    Args:
        spool: the spool folder of the replica.
        user: the id of the user.
        env: the program's environment variables so far.
        sockets: the sockets that this process has created for the program.

    Returns:
        The variables that replace those of the node.
    """
    home, temporary = spool / "home", spool / "tmp"
    variables = {"HOME": str(home), "TMPDIR": str(temporary), "USER": "job", "LOGNAME": "job"}
    home.mkdir(exist_ok=True, mode=CLOSED)
    key_file = env.get(_CREDENTIALS)
    if key_file is not None and Path(key_file).is_file():  # which only this process's user can read
        copy = home / "google-credentials.json"
        shutil.copyfile(key_file, copy)
        copy.chmod(0o600)
        variables[_CREDENTIALS] = str(copy)
    for folder in (home, temporary):
        change_owner(folder, user=user)
    for path in sockets:
        if path.is_socket():
            os.chown(path, user, user)
    return variables
