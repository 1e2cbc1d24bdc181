"""What batch k of epoch e is: which records, in which order, and what is made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from lockstep.data.files.skipping import OnError
from lockstep.data.reading.order import epoch_order
from lockstep.data.reading.randomness import RecordRandom
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.strategies.input import AutoShardPolicy, InputContext, Shares

Transform = Callable[[Sequence[bytes]], Any]
RandomTransform = Callable[[Sequence[bytes], RecordRandom], Any]


class Records(Protocol):
    """What `Batches` reads: records by number, as `lockstep.data.RecordSource` and Grain's data sources are."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """The record with a number, from 0."""
        ...


@runtime_checkable
class Files(Protocol):
    """Records in files that can be opened one by one: `lockstep.data.RecordFiles` and `lockstep.data.RecordSource`."""

    @property
    def num_files(self) -> int:
        """How many files there are."""
        ...

    def open_files(self, files: Sequence[int]) -> Records:
        """Opens the files with these numbers."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Made:
    """A batch.

    Attributes:
        value: what the transform made.
        skipped: its records that cannot be read, whether they were met before or not (whoever met them may have
            been dropped with what it made ahead): why, by number.
    """

    value: Any
    skipped: dict[int, str]


@final
@dataclass(kw_only=True)
class Plan:
    """What batch k of epoch e is; safe to ask from any thread, and it may be pickled.

    Attributes:
        source: the records of this process.
        transform: makes a batch of records, or ``random_transform`` does.
        random_transform: likewise, with what it may draw from.
        batch_size: records of a batch over all processes.
        seed: of the order and of what is random.
        input_context: this process's place among those that read.
        policy: what they divide among them.
        shares: each process's rows of each batch, where it reads records of its own.
        on_error: what is done about records that cannot be read.
    """

    source: Records
    transform: Transform | None
    random_transform: RandomTransform | None
    batch_size: int
    seed: int | None
    input_context: InputContext
    policy: AutoShardPolicy
    shares: Shares | None
    on_error: OnError
    _unreadable: dict[int, str] = field(default_factory=dict[int, str])
    _order: tuple[int, np.ndarray] | None = None
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def num_batches(self) -> int:
        """How many batches an epoch has."""
        return -(-len(self.source) // self.batch_size) if self.shares is None else self.shares.num_batches

    def num_rows(self, batch: int) -> int:
        """Returns the rows of a batch over all processes."""
        if self.shares is None:
            return min(self.batch_size, len(self.source) - batch * self.batch_size)
        return sum(self.shares.of_batch(batch))

    def records_of(self, epoch: int, batch: int) -> np.ndarray:
        """Returns the numbers of the records that this process reads for a batch, integers of shape (num_rows,)."""
        order = self._order_of(epoch)
        if self.shares is None:
            rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            share = self.input_context.rows_to_read(len(rows))
            return rows[share.start : share.stop]
        size = self.shares.rows_of_process(self.input_context.input_pipeline_id)
        return order[batch * size : (batch + 1) * size]

    def make(self, epoch: int, batch: int) -> Made:
        """Reads a batch, and makes what it has to be.

        Raises:
            CorruptDataError: a record is damaged, and is not to be skipped; or more are than may be.
            MissingInputError: likewise of a file that vanished.
            StorageError: records could not be read.
        """
        records = self.records_of(epoch, batch)
        if not len(records):
            return Made(value=self._empty, skipped={})
        if self.on_error == "raise":
            return Made(value=self._make(records, epoch), skipped={})
        try:
            value = self._make(self._readable(records, epoch), epoch)
        except (CorruptDataError, MissingInputError):
            for number in sorted(set(records.tolist())):
                self._try(number, epoch)
            value = self._make(self._readable(records, epoch), epoch)
        with self._lock:
            skipped = {number: self._unreadable[number] for number in records.tolist() if number in self._unreadable}
        return Made(value=value, skipped=skipped)

    @property
    def _stream(self) -> int:
        return 0 if self.shares is None else self.input_context.input_pipeline_id

    def _order_of(self, epoch: int) -> np.ndarray:
        with self._lock:
            if self._order is None or self._order[0] != epoch:
                order = epoch_order(len(self.source), seed=self.seed, epoch=epoch, stream=self._stream)
                self._order = (epoch, order)
            return self._order[1]

    def _readable(self, records: np.ndarray, epoch: int) -> np.ndarray:
        """Returns numbers of records with others in place of those that cannot be read."""
        if not self._unreadable:
            return records
        is_good = np.array([number not in self._unreadable for number in records.tolist()])
        if not is_good.any():
            return np.full_like(records, self._stand_in(records, epoch))
        before = np.maximum.accumulate(np.where(is_good, np.arange(len(records)), -1))
        return records[np.where(before < 0, np.argmax(is_good), before)]

    def _stand_in(self, records: np.ndarray, epoch: int) -> int:
        """Finds a record for a batch of which none can be read: the nearest before it in the order, or after it."""
        assert self.on_error != "raise"
        order = self._order_of(epoch)
        error: str | None = None
        place = int(np.flatnonzero(order == records[0])[0])
        for number in (*order[:place][::-1].tolist(), *order[place:].tolist()):
            error = self._try(number, epoch)
            if error is None:
                return number
            if len(self._unreadable) > self.on_error.limit:
                break
        raise CorruptDataError(
            f"no record is found in place of those that cannot be read; the last one: {error}",
            allowed=f"{self.on_error.limit} skipped, by on_error",
        )

    def _try(self, number: int, epoch: int) -> str | None:
        """Makes a batch of one record, and notes why it cannot be read."""
        if number not in self._unreadable:
            try:
                self._make(np.array([number]), epoch)
            except (CorruptDataError, MissingInputError) as error:
                with self._lock:
                    self._unreadable[number] = str(error)
        return self._unreadable.get(number)

    @cached_property
    def _empty(self) -> Any:
        """A batch of no rows; None where there is no record to tell what one looks like."""
        import keras  # slow to import, and nothing else here needs it

        if not len(self.source):
            return None
        first = self._make(np.zeros(1, np.int64), 0)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf)[:0], first)

    def _make(self, records: np.ndarray, epoch: int) -> Any:
        try:
            return self._transformed(records, epoch)
        except StopIteration as error:  # which would end the epoch, as if there were no more batches
            raise RuntimeError("what makes a batch of records raised StopIteration") from error

    def _transformed(self, records: np.ndarray, epoch: int) -> Any:
        indices: list[int] = records.tolist()
        read_many = getattr(self.source, "__getitems__", None)
        contents = read_many(indices) if read_many else [self.source[index] for index in indices]
        if self.random_transform is None:
            assert self.transform is not None
            return self.transform(contents)
        random = RecordRandom(records, seed=self.seed or 0, epoch=epoch, stream=self._stream)
        return self.random_transform(contents, random)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_order": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
