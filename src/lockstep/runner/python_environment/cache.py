"""Python environments kept on a node: each built once, used by many, the least recently used ones removed.

An environment is believed because its folder has its name: it is built aside and renamed. Whoever uses one holds a
shared lock of it, whoever builds or removes it holds it alone, and the system takes the locks of the dead.
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
    """An environment in use: nobody removes it until this is closed, or its process has ended.

    Args:
        folder: the environment.
        lock: the file whose lock is held.
    """

    def __init__(self, folder: Path, *, lock: IO[Any]) -> None:
        self.folder = folder
        self._lock = lock

    def close(self) -> None:
        """Gives it back."""
        self._lock.close()


@final
class EnvironmentCache:
    """Environments by key, in one folder.

    Args:
        folder: where they lie; made if absent.
        max_bytes: how much they may take together; one that is in use stays whatever it takes.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def downloads(self) -> Path:
        """Where packages are kept that were fetched: another environment may need them."""
        return self._folder / DOWNLOADS

    def lease(self, key: str, *, build: Callable[[Path], object], on_wait: Callable[[], object]) -> Lease:
        """Returns an environment, built where there is none. Blocks, also while another process builds it.

        Args:
            key: names it and decides its content.
            build: makes it in a folder that is not there; where it raises, or the process dies, nothing is kept.
            on_wait: called once, if another process is at it.
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
        shutil.rmtree(partial, ignore_errors=True)  # what a builder that was killed left
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
        """Removes the least recently used environments over the bound, then what was fetched for them."""
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
        """Removes an environment that nobody uses; returns whether it did."""
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # The lock's file stays: another process may have opened it, and would lock what nobody else sees.
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
            with contextlib.suppress(FileNotFoundError):  # another process fetches, or removes, what it needs
                total += os.lstat(os.path.join(top, name)).st_size
    return total
