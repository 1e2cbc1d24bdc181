"""What is done about records that cannot be read: damaged ones, and those of files that were cut off or vanished."""

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
    """Says to go on over records that cannot be read.

    Each is named by a warning when it is met first; records that a file lost with its end, by one for all of them.

    A batch of `lockstep.data.Batches` keeps its size, whatever the other processes find: in place of such a record it
    has the one before it in the batch, once more (after it, for the first); where none of the batch can be read,
    the nearest before it in the epoch's order. Of a file that was cut off, the records that its name states and that
    are gone count as such. A shard that is missing altogether stays an error.

    Attributes:
        limit: how many records each process may skip, 1 or more; one more is the error that it would have been.

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
    """The records that were skipped so far; it may be used from any thread.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._reasons: dict[int, str] = {}

    @classmethod
    def of(cls, on_error: OnError) -> SkippedRecords | None:
        """Returns one that holds to a limit; None where errors are to be raised."""
        return None if on_error == "raise" else cls(on_error.limit)

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why each could not be read, by its number."""
        with self._lock:
            return dict(self._reasons)

    def add(self, number: int, reason: str) -> None:
        """Notes a record, and warns of it if neither it nor the reason was met before.

        Args:
            number: the record's, in its source.
            reason: why it cannot be read.

        Raises:
            CorruptDataError: it is one too many.
        """
        with self._lock:
            if number in self._reasons:
                return
            if len(self._reasons) == self._limit:
                raise CorruptDataError(
                    f"more records cannot be read than may be skipped; the last one: {reason}",
                    received=f"{self._limit + 1} records",
                    allowed=f"{self._limit}, by on_error",
                )
            is_told = reason in self._reasons.values()  # of a file that was cut off all records have one reason
            self._reasons[number] = reason
            count = len(self._reasons)
        if is_told:
            return
        logger.warning("skipped record %d (%d of at most %d): %s", number, count, self._limit, reason)

    def __getstate__(self) -> dict[str, Any]:
        return {"_limit": self._limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_limit"])
