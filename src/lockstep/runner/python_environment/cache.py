"""Caches Python environments on a node: each is built once and shared, and the least recently used are evicted.

A folder with an environment's key as its name is complete, because environments are built elsewhere and then renamed. A
process that uses an environment holds a shared lock of it; a process that builds or removes it holds an exclusive lock.
The system releases the locks of processes that die.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, final

MAX_BYTES: Final = 40 * 1024**3
ABOUT_FILE: Final = "lockstep.json"
DOWNLOADS: Final = "downloads"
DOWNLOADS_USE: Final = "downloads-in-use"
_ENDING: Final = ".lock"
_PARTIAL: Final = ".partial"


@final
class Lease:
    """An environment in use: it is not removed until the lease is closed, or its process has ended.

    Args:
        folder: the folder of the environment.
        lock: the open file whose lock is held.
    """

    def __init__(self, folder: Path, *, lock: IO[Any]) -> None:
        self.folder = folder
        self._lock = lock

    def close(self) -> None:
        """Releases the environment."""
        self._lock.close()


@final
class EnvironmentCache:
    """Environments by key, in one folder.

    Args:
        folder: the folder of the cache; created if it does not exist.
        max_bytes: the maximum size of the cache, in bytes; environments in use are kept even if they exceed it.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def downloads(self) -> Path:
        """The folder of downloaded packages, which other environments may need, too."""
        return self._folder / DOWNLOADS

    def lease(self, key: str, *, build: Callable[[Path], object], on_wait: Callable[[], object]) -> Lease:
        """Returns an environment, and builds it if necessary. Blocks, also while another process builds it.

        Args:
            key: the name of the environment, which determines its content.
            build: creates the environment in a folder that does not exist yet; if it raises, or the process dies,
                nothing is kept.
            on_wait: called once, if another process holds the lock.
        """
        target = self._folder / key
        lock = (self._folder / f"{key}{_ENDING}").open("a")
        try:
            while True:
                _take(lock, fcntl.LOCK_SH, on_wait=on_wait)
                if target.is_dir():
                    os.utime(lock.fileno())
                    return Lease(target, lock=lock)
                fcntl.flock(lock, fcntl.LOCK_UN)
                _take(lock, fcntl.LOCK_EX, on_wait=on_wait)
                if not target.is_dir():
                    self._build(target, build)
                    self._evict(but=key)
        except BaseException:
            lock.close()
            raise

    def _build(self, target: Path, build: Callable[[Path], object]) -> None:
        partial = target.with_name(target.name + _PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)  # left by a builder that was killed
        try:
            with (self._folder / DOWNLOADS_USE).open("a") as use:
                fcntl.flock(use, fcntl.LOCK_SH)
                build(partial)
            about = {"size_bytes": _size_bytes(partial), "built_time_s": time.time()}
            (partial / ABOUT_FILE).write_text(json.dumps(about))
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _evict(self, *, but: str) -> None:
        """Evicts the least recently used environments beyond the limit, then the downloaded packages."""
        locks = sorted(self._folder.glob(f"*{_ENDING}"), key=lambda path: path.stat().st_mtime)
        sizes = {path.stem: self._recorded_bytes(path.stem) for path in locks}
        downloads = _size_bytes(self.downloads)
        for path in locks:
            if sum(sizes.values()) + downloads <= self._max_bytes:
                return
            if path.stem != but and self._remove(path):
                sizes[path.stem] = 0
        if sum(sizes.values()) + downloads > self._max_bytes:
            with (self._folder / DOWNLOADS_USE).open("a") as use, contextlib.suppress(BlockingIOError):
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other process builds from them now
                shutil.rmtree(self.downloads, ignore_errors=True)

    def _remove(self, path: Path) -> bool:
        """Removes an environment that is not in use; returns whether it was removed."""
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # The lock file stays: a process that has opened it already would otherwise lock a file that no other
            # process sees.
            shutil.rmtree(path.with_name(path.stem + _PARTIAL), ignore_errors=True)
            folder = path.with_name(path.stem)
            if folder.is_dir():
                partial = folder.rename(path.with_name(path.stem + _PARTIAL))
                shutil.rmtree(partial, ignore_errors=True)
        return True

    def _recorded_bytes(self, key: str) -> int:
        try:
            return int(json.loads((self._folder / key / ABOUT_FILE).read_text())["size_bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def _take(lock: IO[Any], kind: int, *, on_wait: Callable[[], object]) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(lock, kind)


def _size_bytes(folder: Path) -> int:
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                total += os.lstat(os.path.join(top, name)).st_size
    return total
