"""The policy for unreadable records: damaged ones, and those of files that were cut off or no longer exist."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from lockstep.errors import CorruptDataError, InvalidInputError

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Skip:
    """Skips unreadable records instead of raising an error.

    A warning names each skipped record once. For all records that a file has lost at its end, there is one warning.

    A batch of `lockstep.data.Batches` keeps its size, independent of other processes. A skipped record is replaced by a
    copy of the record before it in the batch, or of the record after it for the first one. If no record of the batch is
    readable, the nearest readable record before the batch in the epoch's order is used, or else the next one after it.
    If a file is cut off, the records that its name counts and that are lost are skipped as well. A shard that is
    missing as a whole still raises an error.

    Attributes:
        limit: the maximum number of records that each process may skip, 1 or more. One more raises CorruptDataError.

    Raises:
        InvalidInputError: the limit is less than 1.
    """

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidInputError("the limit of Skip", received=self.limit, allowed="1 or more")


OnError = Literal["raise"] | Skip


@final
class SkippedRecords:
    """The records that were skipped so far. May be used from any thread.

    Args:
        limit: the maximum number of skipped records.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._reasons: dict[int, str] = {}

    @classmethod
    def of(cls, on_error: OnError) -> SkippedRecords | None:
        """Returns an empty collection for a `Skip` policy; None for "raise"."""
        return None if on_error == "raise" else cls(on_error.limit)

    @property
    def reasons(self) -> Mapping[int, str]:
        """The reason why each record was skipped, by the record's number."""
        with self._lock:
            return dict(self._reasons)

    def add(self, number: int, reason: str) -> None:
        """Adds a skipped record, and logs a warning if both the record and the reason are new.

        Args:
            number: the record's number in its source.
            reason: the reason why the record cannot be read.

        Raises:
            CorruptDataError: the limit is exceeded.
        """
        with self._lock:
            if number in self._reasons:
                return
            if len(self._reasons) == self._limit:
                raise CorruptDataError(
                    f"more unreadable records than may be skipped; the last one: {reason}",
                    received=f"{self._limit + 1} records",
                    allowed=f"{self._limit}, by on_error",
                )
            is_known = reason in self._reasons.values()  # all lost records of a cut-off file have the same reason
            self._reasons[number] = reason
            count = len(self._reasons)
        if is_known:
            return
        logger.warning("skipped record %d (%d of at most %d): %s", number, count, self._limit, reason)

    def __getstate__(self) -> dict[str, Any]:
        return {"_limit": self._limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_limit"])
