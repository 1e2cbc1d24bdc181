"""Cleans up after runners: uploads log and metrics segments that their bucket refused, and removes their containers."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import Final, final

from lockstep.containers import reap_dead
from lockstep.errors import LockstepError, counted
from lockstep.runner.logs import upload_leftovers
from lockstep.service.problems import Part, Problems
from lockstep.spools import LOG_FOLDER, METRICS_FOLDER, remove_if_over, segments_in

LOGGER: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
LOW_BYTES: Final = 64 * 1024 * 1024
LOW_SHARE: Final = 0.02
"""A disk with less free space than both limits is reported as nearly full."""


@final
class LeftoverUploader:
    """Uploads what is left in the spool folders of replicas on this node.

    Args:
        spool: the home's spool folder, which contains ``GANG/REPLICA/log``.
        problems: receives the problem that a bucket refuses segments, with what waits for it, and the problem that the
            spool's disk is nearly full.
    """

    def __init__(self, spool: Path, *, problems: Problems) -> None:
        self._spool = spool
        self._problems = problems

    def run(self, stop: threading.Event) -> None:
        """Removes containers whose runners died, then makes passes over the folders until `stop` is set."""
        try:
            for labels in reap_dead():
                LOGGER.warning("removed the container of %s of job %s: its runner is dead", labels.replica, labels.job)
        except Exception:  # segments must be uploaded even if a container engine fails
            LOGGER.exception("containers whose runners are dead could not be removed")
        while not stop.wait(INTERVAL_S):
            try:
                self.step()
            except Exception:  # a failed pass must not end the loop
                LOGGER.exception("a pass over what is left in the spool failed")

    def step(self) -> None:
        """Makes one pass over the folders. A bucket that still refuses is tried again in the next pass."""
        refused: str | None = None
        for folder in self._folders():
            try:
                num_uploaded = upload_leftovers(folder)
            except (LockstepError, OSError, ValueError) as error:  # the other folders are tried all the same
                refused = str(error)
                continue
            if num_uploaded:
                LOGGER.info("uploaded %d segments from %s", num_uploaded, folder)
                remove_if_over(folder.parent)
        if refused is None:
            self._problems.clear(Part.BUCKET)
        else:
            self._problems.note(Part.BUCKET, refused, kept=self._describe_waiting())
        self._check_disk()

    def _folders(self) -> list[Path]:
        return [*self._spool.glob(f"*/*/{LOG_FOLDER}"), *self._spool.glob(f"*/*/{METRICS_FOLDER}")]

    def _describe_waiting(self) -> str:
        paths = [path for folder in self._folders() for path in segments_in(folder)]
        sizes = [size_bytes for path in paths if (size_bytes := _size_bytes(path))]
        return f"{counted(len(sizes), 'segment')} of logs and metrics, {sum(sizes):,} bytes, in {self._spool}"

    def _check_disk(self) -> None:
        try:
            usage = shutil.disk_usage(self._spool.parent)
        except OSError as error:
            self._problems.note(Part.DISK, str(error))
            return
        if usage.free < min(LOW_BYTES, usage.total * LOW_SHARE):
            self._problems.note(Part.DISK, f"{usage.free:,} bytes of {usage.total:,} are free at {self._spool.parent}")
        else:
            self._problems.clear(Part.DISK)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it has been uploaded meanwhile
        return 0
