"""Batches of records, in an order that repeats exactly: what Keras's ``fit`` takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, final, runtime_checkable

import grain
import keras
import numpy as np

# Keras takes an adapter as it is (`get_data_adapter`: "Allow passing a custom data adapter"), but does not export its
# base class. A bare Grain dataset would work too, and worse: Keras does not ask it for its length, so it warns at each
# epoch's end that the data ran out, and cuts all later epochs to the length of a first one that was resumed half way.
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from lockstep.data.files.record_source import RecordSource
from lockstep.data.reading.order import epoch_order
from lockstep.errors import InvalidInputError
from lockstep.strategies.input import AutoShardPolicy, InputContext, Shares, decide_policy
from lockstep.strategies.shares import gather_counts

Transform = Callable[[Sequence[bytes]], Any]
_DEFAULT_READ_AHEAD: Final = 4


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
@dataclass(frozen=True, kw_only=True, eq=False)
class _Place:
    """Where an iterator starts. Compared by identity: two visits to the same place are not the same visit."""

    epoch: int
    batch: int


@final
@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What batch k of epoch e is; safe to ask from any thread."""

    source: Records
    transform: Transform
    batch_size: int
    seed: int | None
    input_context: InputContext
    policy: AutoShardPolicy
    shares: Shares | None
    """Each process's rows of each batch, where it reads records of its own."""

    @property
    def num_batches(self) -> int:
        return -(-len(self.source) // self.batch_size) if self.shares is None else self.shares.num_batches

    def num_rows(self, batch: int) -> int:
        """Rows of a global batch."""
        if self.shares is None:
            return min(self.batch_size, len(self.source) - batch * self.batch_size)
        return sum(self.shares.of_batch(batch))

    def order(self, epoch: int) -> np.ndarray:
        stream = 0 if self.shares is None else self.input_context.input_pipeline_id
        return epoch_order(len(self.source), seed=self.seed, epoch=epoch, stream=stream)

    def read(self, order: np.ndarray, batch: int) -> Any:
        if self.shares is None:
            rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            return self._read(rows[self.input_context.rows_to_read(len(rows))])
        size = self.shares.rows_of_process(self.input_context.input_pipeline_id)
        rows = order[batch * size : (batch + 1) * size]
        return self._read(rows) if len(rows) else self._empty

    @cached_property
    def _empty(self) -> Any:
        """A batch of no rows; None where there is no record to tell what one looks like."""
        if not len(self.source):
            return None
        return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf)[:0], self._read([0]))

    def _read(self, rows: Sequence[int] | np.ndarray) -> Any:
        indices: list[int] = np.asarray(rows).tolist()
        read_many = getattr(self.source, "__getitems__", None)
        return self.transform(read_many(indices) if read_many else [self.source[index] for index in indices])


@final
class Batches(grain.IterDataset, DataAdapter):
    """Batches of records for ``fit``, ``evaluate`` and ``predict``, or for a loop of one's own.

    The order of epoch ``e`` is a function of the number of records, the seed and ``e`` alone. Batch ``k`` is the k-th
    slice of ``batch_size`` records of that order; the last one may be smaller. With several processes each yields its
    own share of every batch (`lockstep.strategies.InputContext.rows_to_read`), and any number of processes goes through
    the same batches.

    Under the policies FILE and OFF each process has records of its own, and an order of its own over them. It reads
    ``batch_size / n`` of them for a batch, n being the processes; the batch is what they read, one after the other.
    Near the end of an epoch some have fewer rows, or none: `shares_of_batch` says how many each has. (A process that
    has no record at all yields None.) A run cannot go on with another number of processes then.

    Each iteration runs one epoch, and the next one runs the next epoch: an epoch counts as run when its last batch
    was handed out. An iteration that stops before, such as Keras's look at one batch to build a model, leaves the place
    where it was. (Where an epoch has a single batch, or two and Keras reads one ahead, that look cannot be told from an
    epoch: training then begins with the order of epoch 1, unless `seek` says otherwise after the look.)

    A thread reads a few batches ahead; it ends with the iterator. The object itself belongs to one thread.
    Given to ``fit`` it is the whole data: ``y``, ``sample_weight`` and ``class_weight`` are not taken beside it.

    Args:
        source: the records, such as a `lockstep.data.RecordSource`; or files that are not open yet
            (`lockstep.data.RecordFiles`), of which only those are opened that this process reads.
        batch_size: records of a batch over all processes.
        transform: makes a batch's arrays from its records, called in the reading thread; for ``fit`` it returns
            ``(x, y)`` or ``(x, y, sample_weight)``, each an array or a structure of arrays with the records first.
        seed: of the order, which differs from epoch to epoch; None reads the records in order.
        input_context: this process's place among those that read, as ``strategy.input_context`` says; a process by
            itself by default.
        read_ahead: how many batches are read before they are asked for; 0 reads each when it is, in the asking
            thread.
        policy: what the processes divide among them: records (DATA), files (FILE), files where there are enough and
            records otherwise (AUTO), or nothing (OFF). See `lockstep.strategies.AutoShardPolicy`.
        gather: tells every process how many records each one has, given this one's number, under the policies FILE and
            OFF. By default it is a collective of JAX's: all processes make such batches, in the same order.

    Raises:
        InvalidInputError: a number is out of its range, there are no records, or the policy does not fit the data.
    """

    def __init__(
        self,
        source: Records | Files,
        *,
        batch_size: int,
        transform: Transform,
        seed: int | None = None,
        input_context: InputContext | None = None,
        read_ahead: int = _DEFAULT_READ_AHEAD,
        policy: AutoShardPolicy = AutoShardPolicy.DATA,
        gather: Callable[[int], Sequence[int]] = gather_counts,
    ) -> None:
        super().__init__()
        context = InputContext() if input_context is None else input_context
        _check(batch_size >= 1, "batch_size", batch_size, "1 or more")
        _check(seed is None or seed >= 0, "seed", seed, "0 or more, or None")
        _check(read_ahead >= 0, "read_ahead", read_ahead, "0 or more")
        files = source if isinstance(source, Files) else None
        decided = decide_policy(
            policy, num_files=files.num_files if files else None, num_workers=context.num_input_pipelines
        )
        own = _open(source, policy=decided, context=context)
        whole = decided is AutoShardPolicy.DATA or context.num_input_pipelines == 1
        if whole:
            _check(len(own) >= 1, "the source of Batches has no records", source, "one record or more")
        self._plan = _Plan(
            source=own,
            transform=transform,
            batch_size=batch_size,
            seed=seed,
            input_context=context,
            policy=decided,
            shares=None if whole else _share(own, batch_size=batch_size, context=context, gather=gather),
        )
        self._read_ahead = read_ahead
        self._place = _Place(epoch=0, batch=0)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self._plan.num_batches

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and batch at which the next iteration starts."""
        return self._place.epoch, self._place.batch

    @property
    def policy(self) -> AutoShardPolicy:
        """What the processes divide among them; never AUTO, which has been decided."""
        return self._plan.policy

    def shares_of_batch(self, batch: int) -> tuple[int, ...] | None:
        """Returns the rows that each process yields of a batch; None where they divide the batch itself.

        Args:
            batch: position in an epoch, from 0; it may run on through the epochs.
        """
        shares = self._plan.shares
        return None if shares is None else shares.of_batch(batch % shares.num_batches)

    def seek(self, *, epoch: int, batch: int = 0) -> None:
        """Makes iterations start elsewhere, until one of them has run to the end of that epoch.

        Keras looks at a batch before it trains: call this after the look (in a callback's ``on_train_begin``) where
        fewer than two batches are left of the epoch.

        Args:
            epoch: which epoch, from 0.
            batch: its batch, from 0; as many as an epoch has means the beginning of the next epoch.

        Raises:
            InvalidInputError: there is no such place.
        """
        _check(epoch >= 0, "epoch", epoch, "0 or more")
        _check(0 <= batch <= len(self), "batch", batch, f"0 to {len(self)}")
        self._place = _Place(epoch=epoch + batch // len(self), batch=batch % len(self))

    def __iter__(self) -> grain.DatasetIterator:
        """Returns an iterator over what is left of the epoch at the place."""
        place = self._place

        def finished() -> None:
            if self._place is place:
                self._place = _Place(epoch=place.epoch + 1, batch=0)

        return _BatchIterator(
            self._plan, epoch=place.epoch, batch=place.batch, read_ahead=self._read_ahead, finished=finished
        )

    def __str__(self) -> str:
        """Names the source; Grain shows it."""
        return f"Batches({self._plan.source}, batch_size={self._plan.batch_size})"

    def get_jax_iterator(self) -> Batches:
        """Returns the batches, for Keras: NumPy arrays are what its JAX trainer wants."""
        return self

    def get_numpy_iterator(self) -> Batches:
        """Returns the batches, for Keras."""
        return self

    @property
    def num_batches(self) -> int:
        """How many batches an epoch has, for Keras."""
        return len(self)

    @property
    def batch_size(self) -> int:
        """Records of a batch over all processes."""
        return self._plan.batch_size

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller, for Keras."""
        return self.partial_batch_size is not None

    @property
    def partial_batch_size(self) -> int | None:
        """Records of the last batch over all processes where it is smaller."""
        num_rows = self._plan.num_rows(len(self) - 1)
        return num_rows if num_rows < self.batch_size else None


@final
class _BatchIterator(grain.DatasetIterator):
    """One epoch's batches, or the rest of them."""

    def __init__(
        self, plan: _Plan, *, epoch: int, batch: int, read_ahead: int, finished: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self._plan = plan
        self._epoch = epoch
        self._batch = batch
        self._finished = finished
        self._num_ahead = read_ahead
        self._order: np.ndarray | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Any]] = deque()

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._batch >= self._plan.num_batches:
            raise StopIteration
        if self._order is None:
            self._order = self._plan.order(self._epoch)
        # Only what was read is counted: after an error the same batch is next.
        value = self._take(self._order) if self._num_ahead else self._plan.read(self._order, self._batch)
        self._batch += 1
        if self._batch == self._plan.num_batches:
            self._stop_reading()
            if self._finished is not None:
                self._finished()
        return value

    def _take(self, order: np.ndarray) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "lockstep-read-ahead")
        last = min(self._batch + 1 + self._num_ahead, self._plan.num_batches)
        for batch in range(self._batch + len(self._ahead), last):
            # The thread knows the plan, not this iterator: dropping the iterator ends the thread.
            self._ahead.append(self._executor.submit(self._plan.read, order, batch))
        try:
            value = self._ahead[0].result()
        except BaseException:
            self._stop_reading()
            raise
        self._ahead.popleft()
        return value

    def _stop_reading(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None
        self._ahead.clear()

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batch": self._batch}

    def set_state(self, state: dict[str, Any]) -> None:
        self._stop_reading()
        self._order = None
        self._epoch = int(state["epoch"])
        self._batch = int(state["batch"])
        # The dataset counts the epoch that it sent this iterator to; elsewhere it has no say.
        self._finished = None

    def close(self) -> None:
        if not self._closed:
            self._stop_reading()
        super().close()

    def __str__(self) -> str:
        return f"Batches(epoch={self._epoch}, batch={self._batch})"


def _open(source: Records | Files, *, policy: AutoShardPolicy, context: InputContext) -> Records:
    if not isinstance(source, Files):
        return source
    if policy is AutoShardPolicy.FILE and context.num_input_pipelines > 1:
        return source.open_files(context.files_to_read(source.num_files))
    return source if isinstance(source, RecordSource) else source.open_files(range(source.num_files))


def _share(own: Records, *, batch_size: int, context: InputContext, gather: Callable[[int], Sequence[int]]) -> Shares:
    counts = tuple(gather(len(own)))
    _check(
        len(counts) == context.num_input_pipelines,
        "workers that read records of their own are as many as the processes of this job",
        f"{len(counts)} processes",
        f"{context.num_input_pipelines}, by the input context",
    )
    return Shares(batch_size=batch_size, num_records=counts)


def _check(fits: bool, what: str, received: object, allowed: str) -> None:  # noqa: FBT001 - a private condition
    if not fits:
        raise InvalidInputError(what, received=received, allowed=allowed)
