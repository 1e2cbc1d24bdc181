"""The iterator over a `lockstep.data.Dataset`, whose position can be saved and restored."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, final

import grain
from typing_extensions import override

from lockstep.data.dataset import plan as steps
from lockstep.data.dataset.indexed import AbstractIndexed
from lockstep.data.dataset.owned_iterators import OwnedIterator
from lockstep.data.dataset.plan import Pass, Plan


@final
class Positions:
    """The epoch and batch at which the next iteration begins.

    A data set shares them with the data sets that `Dataset.divide` and `Dataset.iterate_mapped` make from it.
    """

    def __init__(self) -> None:
        self._next = (0, 0)

    def set(self, epoch: int, batch: int) -> None:
        """Lets the next pass begin at a batch of an epoch."""
        self._next = (epoch, batch)

    def next_position(self) -> tuple[int, int]:
        """Returns the next iteration and its first element; the one after it begins at the start of the next epoch."""
        epoch, batch = self._next
        self._next = (epoch + 1, 0)
        return epoch, batch


_GRAINS_NOTE: Final = "Grain has removed its internal frames"
"""The beginning of a note about traceback frames. Grain adds it to errors of iterators that ours is made from, once the
process has iterated over a data set of Grain's by itself.
"""


@final
class DatasetIterator(grain.DatasetIterator):
    """One iteration over a data set."""

    def __init__(self, plan: Plan, places: Positions) -> None:
        super().__init__()
        self._plan = plan
        self._places = places
        self._epoch = 0
        self._owned: OwnedIterator | None = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        try:
            return next(self._begun())
        except Exception as error:
            notes: list[str] = getattr(error, "__notes__", [])
            notes[:] = [note for note in notes if _GRAINS_NOTE not in note]
            raise

    def _begun(self) -> grain.DatasetIterator:
        if self._owned is None:
            self._epoch, batch = self._places.next_position()
            pipeline = self._open()
            if isinstance(pipeline, AbstractIndexed):
                grain.experimental.set_next_index(self._iterator, min(batch, len(pipeline)))
            else:
                self._skip(batch)
        return self._iterator

    @property
    def _iterator(self) -> grain.DatasetIterator:
        assert self._owned is not None, "it was begun"
        return self._owned.iterator

    def _skip(self, count: int) -> None:
        """Computes the first elements again and drops them; continues in later epochs if this one has fewer."""
        while count:
            num_skipped = sum(1 for _ in islice(self._iterator, count))
            count -= num_skipped
            state = self._iterator.get_state()
            if not count and next(self._iterator, self) is not self:
                self._iterator.set_state(state)
                return
            if not num_skipped:
                return  # the epoch has no element
            self._epoch, _ = self._places.next_position()
            self._open()

    def _open(self) -> steps.Pipeline:
        self._stop()
        pipeline = self._plan.make(Pass(path=(self._epoch,)))
        self._owned = OwnedIterator(steps.as_sequential(pipeline))
        return pipeline

    @override
    def get_state(self) -> dict[str, Any]:
        within = self._begun().get_state()
        return {"epoch": self._epoch, "within": within}

    @override
    def set_state(self, state: dict[str, Any]) -> None:
        self._epoch = int(state["epoch"])
        self._open()
        self._iterator.set_state(state["within"])

    def _stop(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.end()

    @override
    def close(self) -> None:
        if not self._closed:
            self._stop()
        super().close()

    def __str__(self) -> str:
        return f"Dataset(epoch={self._epoch})"


# Grain adds no note to errors of functions with this mark; lockstep.data.reading.batches tells why that matters.
DatasetIterator.__next__.is_traceback_filtered = True  # pyright: ignore[reportFunctionMemberAccess] - a mark
