"""Shares the compiled programs of a version among its servers on a node, and with no other version.

A server writes what JAX compiles into a folder of its own. Once it is ready, the runner copies that to the node's
folder of the version, which no program can write to or read. The next server of the version gets a copy of it. So a
program can only affect later servers of its own version.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, final

from lockstep.processes.confinement import CLOSED, change_owner

MAX_FILES: Final = 1000
MAX_BYTES: Final = 2 * 2**30
"""The maximum size of the compiled programs of one version, in bytes. Larger ones are not shared."""
KEPT_S: Final = 30 * 24 * 3600.0
"""How long the programs of a version are kept that no server has used, in seconds."""
_PARTIAL: Final = ".partial-"


@final
class CompiledPrograms:
    """The compiled programs of one version on this node.

    Args:
        folder: the node's folder of the version, which no program can access. It lies in a folder for all versions.
        own: the folder of one server, in which it finds programs and writes others. It does not exist yet.
        user: the id of the server's user; None for this process's own.
    """

    def __init__(self, folder: Path, *, own: Path, user: int | None) -> None:
        self._folder = folder
        self._own = own
        self._user = user

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which JAX uses the server's folder, for programs of any size."""
        return {
            "JAX_COMPILATION_CACHE_DIR": str(self._own),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            # XLA's own caches would lie in this folder. Its path would then be part of the key of each program.
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        }

    def restore(self) -> None:
        """Creates the server's folder, with what earlier servers of the version have compiled. Blocks.

        Raises:
            OSError: the disk is full, or fails.
        """
        shutil.rmtree(self._own, ignore_errors=True)  # of an earlier launch
        self._own.mkdir()
        if self._folder.is_dir():
            os.utime(self._folder)
            for path in self._folder.iterdir():
                if not path.name.startswith(_PARTIAL):
                    shutil.copyfile(path, self._own / path.name)
        if self._user is not None:
            change_owner(self._own, user=self._user)

    def save(self) -> None:
        """Copies what the server has compiled to the version's folder. Blocks. Any thread may call it.

        The server may change its folder meanwhile, so only regular files of its own user are read, and no links are
        followed.

        Raises:
            OSError: the disk is full, or fails.
        """
        self._remove_unused()
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=CLOSED)
        num_bytes = 0
        for number, (name, file) in enumerate(self._own_files()):
            num_bytes += os.fstat(file.fileno()).st_size
            if number >= MAX_FILES or num_bytes > MAX_BYTES:
                return
            if not (self._folder / name).exists():
                self._write(name, file)

    def _own_files(self) -> Iterator[tuple[str, BinaryIO]]:
        """Yields the names and the opened files of the server's folder."""
        owner = os.geteuid() if self._user is None else self._user
        folder = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in sorted(os.listdir(folder)):
                try:
                    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                except OSError:  # a link, or it has just been removed
                    continue
                found = os.fstat(descriptor)
                # A file with another name elsewhere may be a hard link to a file of somebody else's.
                if not stat.S_ISREG(found.st_mode) or found.st_uid != owner or found.st_nlink != 1:
                    os.close(descriptor)
                    continue
                with open(descriptor, "rb") as file:
                    yield name, file
        finally:
            os.close(folder)

    def _write(self, name: str, source: BinaryIO) -> None:
        partial = self._folder / f"{_PARTIAL}{uuid.uuid4().hex}"
        try:
            with partial.open("wb") as target:
                left = MAX_BYTES  # the file may grow while it is read
                while left > 0 and (data := source.read(min(left, 1 << 20))):
                    left -= target.write(data)
            partial.rename(self._folder / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _remove_unused(self) -> None:
        """Removes the programs of versions that no server has used for long, and what killed runners have left."""
        for path in (*self._folder.parent.glob("*"), *self._folder.glob(f"{_PARTIAL}*")):
            with contextlib.suppress(OSError):  # another runner has just removed it
                if time.time() - path.stat().st_mtime > KEPT_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
