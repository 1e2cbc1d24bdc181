"""Records when versions were last used, apart from the requests that use them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, final

from lockstep.service.prediction.routing import Routes
from lockstep.service.store import DATABASE_FAULTS, ModelStore

LOGGER: Final = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
"""How often it looks which versions were used, in seconds."""
WRITE_INTERVAL_S: Final = 60.0
"""How often the use of one version is written at most, in seconds."""


@final
class LastUses:
    """Writes the times at which versions were last used: the first at once, later ones once a minute.

    Every service over the database has its own.

    Args:
        routes: has the versions that were used.
        models: the store of versions.
        clock: the clock, in seconds since 1970 UTC.
        timer: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        models: ModelStore,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes = routes
        self._models = models
        self._clock = clock
        self._timer = timer
        self._used_time_s: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Writes until `stop` is set, and then what is left."""
        while not stop.wait(LOOK_INTERVAL_S):
            self._try()
        self._written.clear()
        self._try()

    def step(self) -> None:
        """Writes the uses whose turn it is. Blocks while the database is busy.

        Raises:
            DATABASE_FAULTS: If the database cannot be written. The uses are written later.
        """
        self._used_time_s |= dict.fromkeys(self._routes.take_used(), self._clock())
        now = self._timer()
        self._written = {uid: since for uid, since in self._written.items() if now - since < WRITE_INTERVAL_S}
        for uid in self._used_time_s.keys() - self._written.keys():
            self._models.note_use(uid, time_s=self._used_time_s[uid])
            del self._used_time_s[uid]
            self._written[uid] = now

    def _try(self) -> None:
        try:
            self.step()
        except DATABASE_FAULTS:  # the controller reports it
            pass
        except Exception:  # a bug, which must not end the loop
            LOGGER.exception("the last uses of versions were not recorded")
