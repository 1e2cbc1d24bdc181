"""Copies the files of versions in threads, so that a large model delays no other version."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.store import VersionRecord

MAX_COPIES: Final = 4
"""How many versions are copied at the same time. Further ones wait."""

Copy = Callable[[VersionRecord, Path], tuple[FileOrder, ...]]
"""Copies the files of a version by way of a folder of its own, and returns the copies."""


@final
@dataclass(kw_only=True, eq=False)
class _Copying:
    version: VersionRecord
    is_done: bool = False
    files: tuple[FileOrder, ...] = ()
    error: Exception | None = None
    thread: threading.Thread | None = field(default=None, repr=False)


@final
class Copies:
    """The copies that are in progress. For one thread, which polls them.

    The threads do not keep the process from ending. Another service begins such a copy anew.

    Args:
        copy: copies the files of one version; called in a thread.
        folder: a local folder for temporary files, for this alone. What a killed service left there is deleted.
    """

    def __init__(self, copy: Copy, *, folder: Path) -> None:
        self._copy = copy
        self._folder = folder
        self._is_clean = False
        self._copies: dict[str, _Copying] = {}
        self._waiting: deque[_Copying] = deque()

    def poll(self, version: VersionRecord) -> tuple[FileOrder, ...] | None:
        """Begins to copy the files of a version, or returns the finished copies.

        Returns:
            The copies; None while they are not finished. After an end, the next call begins anew.

        Raises:
            LockstepError: If the files could not be copied; see `lockstep.service.prediction.files.copy_files`.
            OSError: If the local folder cannot be written.
        """
        found = self._copies.get(version.uid)
        if found is None:
            found = self._copies[version.uid] = _Copying(version=version)
            self._waiting.append(found)
        self._start_next()
        if not found.is_done:
            return None
        del self._copies[version.uid]
        if found.error is not None:
            raise found.error
        return found.files

    def is_copying(self, version: VersionRecord) -> bool:
        """Returns whether files of a version may be written; forgets a copy that is finished or was not begun."""
        found = self._copies.get(version.uid)
        if found is None:
            return False
        if found.thread is None:
            self._waiting.remove(found)
        elif not found.is_done:
            return True
        del self._copies[version.uid]
        self._start_next()
        return False

    def _start_next(self) -> None:
        if not self._is_clean:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._is_clean = True
        num_running = sum(copying.thread is not None and not copying.is_done for copying in self._copies.values())
        while self._waiting and num_running < MAX_COPIES:
            copying = self._waiting.popleft()
            copying.thread = threading.Thread(target=self._run, args=(copying,), name="copy", daemon=True)
            copying.thread.start()
            num_running += 1

    def _run(self, copying: _Copying) -> None:
        folder = self._folder / copying.version.uid
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            copying.files = self._copy(copying.version, folder)
        except Exception as error:  # raised where it is polled
            copying.error = error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            copying.is_done = True
