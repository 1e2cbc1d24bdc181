"""The plan of the batches: the records of batch k of epoch e, their order, and the transform of them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
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
    """Records by number, such as `lockstep.data.RecordSource` and Grain's data sources, which `Batches` reads."""

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Returns a record by its number, from 0."""
        ...


@runtime_checkable
class Files(Protocol):
    """Records in files that can be opened one by one: `lockstep.data.RecordFiles` and `lockstep.data.RecordSource`."""

    @property
    def num_files(self) -> int:
        """The number of files."""
        ...

    def open_files(self, files: Sequence[int]) -> Records:
        """Opens the files with the given numbers, from 0."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class MadeBatch:
    """A batch that was made.

    Attributes:
        value: the result of the transform.
        skipped: the reasons why records of the batch are unreadable, by the records' numbers. It includes records that
            an earlier batch found unreadable, because that batch may have been dropped unread.
    """

    value: Any
    skipped: dict[int, str]


@final
@dataclass(kw_only=True)
class Plan:
    """The definition of batch k of epoch e. May be used from any thread, and pickled.

    Attributes:
        source: the records of this process.
        transform: the function that makes a batch from records; None if ``random_transform`` is given.
        random_transform: the same with a `RecordRandom` as second argument.
        batch_size: the number of records of a batch over all processes.
        seed: the seed of the order and of the random numbers.
        input_context: this process's index among the processes that read.
        policy: the sharding policy: DATA, FILE or OFF.
        shares: the number of rows of each process in each batch, if each process reads records of its own; None if the
            processes divide each batch.
        on_error: the policy for unreadable records.
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
        """The number of batches of an epoch."""
        return -(-len(self.source) // self.batch_size) if self.shares is None else self.shares.num_batches

    def num_rows(self, batch: int) -> int:
        """Returns the number of rows of a batch over all processes."""
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

    def make(self, epoch: int, batch: int) -> MadeBatch:
        """Reads the records of a batch, and applies the transform.

        Raises:
            CorruptDataError: a record is damaged and ``on_error`` is "raise", or no readable record was found as a
                replacement.
            MissingInputError: a file no longer exists and ``on_error`` is "raise".
            StorageError: records could not be read.
        """
        records = self.records_of(epoch, batch)
        if not len(records):
            return MadeBatch(value=self._empty, skipped={})
        if self.on_error == "raise":
            return MadeBatch(value=self._make(records, epoch), skipped={})
        try:
            value = self._make(self._readable(records, epoch), epoch)
        except (CorruptDataError, MissingInputError):
            for number in sorted(set(records.tolist())):
                self._check_readable(number, epoch)
            value = self._make(self._readable(records, epoch), epoch)
        with self._lock:
            skipped = {number: self._unreadable[number] for number in records.tolist() if number in self._unreadable}
        return MadeBatch(value=value, skipped=skipped)

    def followed_by(self, function: Callable[[Any], Any]) -> Plan:
        """Returns the plan of batches that a function is applied to when they are made.

        Args:
            function: a function of what the transform returns.
        """
        plan = copy.copy(self)
        vars(plan).pop("_empty", None)
        if self.transform is not None:
            plan.transform = partial(_apply_both, self.transform, function)
        if self.random_transform is not None:
            plan.random_transform = partial(_apply_both, self.random_transform, function)
        return plan

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
        """Replaces the numbers of unreadable records by those of readable records."""
        if not self._unreadable:
            return records
        is_good = np.array([number not in self._unreadable for number in records.tolist()])
        if not is_good.any():
            return np.full_like(records, self._find_replacement(records, epoch))
        before = np.maximum.accumulate(np.where(is_good, np.arange(len(records)), -1))
        return records[np.where(before < 0, np.argmax(is_good), before)]

    def _find_replacement(self, records: np.ndarray, epoch: int) -> int:
        """Finds a replacement for a batch without readable records: the nearest record before it, or else after it."""
        assert self.on_error != "raise"
        order = self._order_of(epoch)
        error: str | None = None
        place = int(np.flatnonzero(order == records[0])[0])
        for number in (*order[:place][::-1].tolist(), *order[place:].tolist()):
            error = self._check_readable(number, epoch)
            if error is None:
                return number
            if len(self._unreadable) > self.on_error.limit:
                break
        raise CorruptDataError(
            f"no readable record found as a replacement; last error: {error}",
            allowed=f"{self.on_error.limit} skipped, by on_error",
        )

    def _check_readable(self, number: int, epoch: int) -> str | None:
        """Makes a batch of one record; if it cannot be read, stores and returns the reason."""
        if number not in self._unreadable:
            try:
                self._make(np.array([number]), epoch)
            except (CorruptDataError, MissingInputError) as error:
                with self._lock:
                    self._unreadable[number] = str(error)
        return self._unreadable.get(number)

    @cached_property
    def _empty(self) -> Any:
        """A batch of 0 rows with the structure of the first record's; None if this process has no records."""
        import keras  # slow to import, and nothing else here needs it

        if not len(self.source):
            return None
        first = self._make(np.zeros(1, np.int64), 0)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf)[:0], first)

    def _make(self, records: np.ndarray, epoch: int) -> Any:
        try:
            return self._transformed(records, epoch)
        except StopIteration as error:  # it would end the epoch as if there were no more batches
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


def _apply_both(transform: Callable[..., Any], function: Callable[[Any], Any], /, *args: Any) -> Any:
    return function(transform(*args))
