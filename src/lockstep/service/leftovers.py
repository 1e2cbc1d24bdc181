"""What runners left: log lines and metrics that their bucket refused, containers of those that were killed."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from pathlib import Path
from typing import Final, final

from lockstep.containers import reap_dead
from lockstep.errors import StorageError
from lockstep.runner.logs import carry_leftovers
from lockstep.runner.metrics import METRICS_FOLDER

LOGGER: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0


@final
class LeftoverCarrier:
    """Looks through the replicas' spool folders of this node.

    Args:
        spool: the home's spool folder, with ``GANG/REPLICA/log`` below it.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool

    def run(self, stop: threading.Event) -> None:
        """Removes containers whose runners died without a service, then passes over the folders until told to stop."""
        for labels in reap_dead():
            LOGGER.warning("removed the container of %s of job %s: its runner is dead", labels.replica, labels.job)
        while not stop.wait(INTERVAL_S):
            self.step()

    def step(self) -> None:
        """Makes one pass. A bucket that still refuses is asked again at the next."""
        for folder in [*self._spool.glob("*/*/log"), *self._spool.glob(f"*/*/{METRICS_FOLDER}")]:
            try:
                num_carried = carry_leftovers(folder)
            except (StorageError, OSError) as error:
                LOGGER.warning("log lines or metrics wait in %s: %s", folder, error)
                continue
            if num_carried:
                LOGGER.info("carried %d segments from %s", num_carried, folder)
                self._remove(folder)

    @staticmethod
    def _remove(folder: Path) -> None:
        """Removes a folder of which all is carried; a runner that still needs it makes it anew."""
        if not any(folder.glob("*.jsonl")):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # something of the replica, or of its gang, is still there
                (folder.parent / "runner.log").unlink(missing_ok=True)
                folder.parent.rmdir()
                folder.parent.parent.rmdir()
