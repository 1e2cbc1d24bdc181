"""Batches of records in a reproducible order, for Keras's ``fit``."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import grain
import numpy as np

from lockstep.data.files.record_source import RecordSource
from lockstep.data.files.skipping import OnError, Skip, SkippedRecords
from lockstep.data.reading.plan import Files, Plan, RandomTransform, Records, Transform
from lockstep.data.reading.read_ahead import ReadAhead
from lockstep.data.reading.workers import Workers
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.strategies.input import AutoShardPolicy, InputContext, Shares, decide_policy
from lockstep.strategies.shares import gather_counts
from lockstep.upstream.keras_data import AbstractBatchAdapter
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

_MAX_DEFAULT_THREADS: Final = 8


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Place:
    """The place where an iterator starts. Compared by identity, so that a `seek` to the same place is a new place."""

    epoch: int
    batch: int


@final
@dataclass(kw_only=True, eq=False)
class _Progress:
    """The place of batches, which those that `Batches.map` and `Batches.repeat` return share with them."""

    place: _Place


@final
class Batches(grain.IterDataset, AbstractBatchAdapter):
    """Batches of records for ``fit``, ``evaluate`` and ``predict``, or for a custom training loop.

    The order of epoch ``e`` depends only on the number of records, the seed and ``e``. Batch ``k`` is the k-th slice of
    ``batch_size`` records of that order; the last batch of an epoch may be smaller. With several processes, each
    process yields its share of every batch (`lockstep.strategies.InputContext.rows_to_read`). The batches are the same
    for any number of processes.

    Under the policies FILE and OFF, each process has records and an order of its own. For each batch it reads
    ``batch_size / n`` of its records, where n is the number of processes; the global batch is the concatenation of
    these rows. Near the end of an epoch, some processes have fewer rows or none: `shares_of_batch` returns the number
    for each process. (A process without any record yields None.) Under these policies, a training cannot be resumed
    with another number of processes.

    Each iteration runs one epoch, and the next iteration runs the next epoch. An epoch counts as run when its last
    batch has been returned. An iteration that stops earlier, as when Keras reads one batch to build a model, does not
    change the place at which the next iteration starts. (If an epoch has only one batch, or two and Keras reads one
    ahead, reading a batch to build the model looks like a full epoch. Training then begins with the order of epoch 1,
    unless `seek` sets the place afterwards.)

    Several threads make batches ahead of their use, each thread a batch of its own. The threads end with the iterator.
    If the transform holds Python's global interpreter lock, for example because it parses in Python, use processes
    (``num_processes``). The object itself may be used by one thread only. ``fit`` takes the object as the whole data:
    it rejects a separate ``y``, ``sample_weight`` or ``batch_size``, and applies ``class_weight`` to the rows of the
    batches. With ``steps_per_epoch``, each epoch of ``fit`` continues where the last one ended.

    Args:
        source: the records, such as a `lockstep.data.RecordSource`; or files that are not open yet
            (`lockstep.data.RecordFiles`), of which this process opens only those that it reads.
        batch_size: the number of records of a batch over all processes.
        transform: the function that makes a batch's arrays from its records. It is called in several threads at once.
            For ``fit`` it returns ``(x, y)`` or ``(x, y, sample_weight)``, each an array or a structure of arrays whose
            first axis is the records.
        random_transform: the same with a `RecordRandom` as second argument: random numbers for each record that depend
            only on the seed, the epoch and the record. Give either ``transform`` or ``random_transform``.
        seed: the seed of the order, which differs between epochs; None reads the records in order. It is also the seed
            of the `RecordRandom` of ``random_transform`` (0 for None).
        input_context: this process's index among the processes that read, as ``strategy.input_context`` returns it; by
            default, this is the only process.
        read_ahead: the number of batches to make before they are requested, which bounds the memory. 0 makes each batch
            when it is requested, in the requesting thread. The default is the number of threads or processes that make
            batches, plus 2.
        num_threads: the number of threads that make batches; by default one per processor, at most 8.
        num_processes: the number of processes that make batches instead of threads; 0 for none. The transform, with
            everything that it refers to, is sent to them with cloudpickle.
        on_error: the policy for unreadable records: "raise", or `Skip`; by default the policy of the source.
        policy: the sharding policy, which says what the processes divide among themselves: records (DATA), files
            (FILE) or nothing (OFF). AUTO chooses FILE if there is a file for each process and a batch has a row for
            each process, and DATA otherwise. See `lockstep.strategies.AutoShardPolicy`.
        gather: the function that takes the number of this process's records and returns the numbers of all processes,
            for the policies FILE and OFF. The default is a JAX collective, so all processes have to create such batches
            in the same order.

    Raises:
        InvalidInputError: a number is out of range, there are no records, or the policy does not fit the data.
    """

    def __init__(
        self,
        source: Records | Files,
        *,
        batch_size: int,
        transform: Transform | None = None,
        random_transform: RandomTransform | None = None,
        seed: int | None = None,
        input_context: InputContext | None = None,
        read_ahead: int | None = None,
        num_threads: int | None = None,
        num_processes: int = 0,
        on_error: OnError | None = None,
        policy: AutoShardPolicy = AutoShardPolicy.DATA,
        gather: Callable[[int], Sequence[int]] = gather_counts,
    ) -> None:
        super().__init__()
        context = InputContext() if input_context is None else input_context
        _check_number("batch_size", batch_size, least=1)
        _check_number("seed", seed, least=0, or_none=True)
        _check_number("read_ahead", read_ahead, least=0, or_none=True)
        _check_number("num_threads", num_threads, least=1, or_none=True)
        _check_number("num_processes", num_processes, least=0)
        _check_transforms(transform, random_transform)
        _check(on_error in (None, "raise") or isinstance(on_error, Skip), "on_error", on_error, '"raise", Skip(limit)')
        _check(isinstance(policy, AutoShardPolicy), "policy", policy, "a lockstep.strategies.AutoShardPolicy")
        _check_numbered(source)
        decided_on_error: OnError = getattr(source, "on_error", "raise") if on_error is None else on_error
        files = source if isinstance(source, Files) else None
        decided = decide_policy(
            policy,
            num_files=files.num_files if files else None,
            num_workers=context.num_input_pipelines,
            batch_size=batch_size,
        )
        own = _open(source, policy=decided, context=context)
        whole = decided is AutoShardPolicy.DATA or context.num_input_pipelines == 1
        if whole:
            _check(len(own) >= 1, "the source of Batches has no records", source, "one record or more")
        self._plan = Plan(
            source=own,
            transform=transform,
            random_transform=random_transform,
            batch_size=batch_size,
            seed=seed,
            input_context=context,
            policy=decided,
            shares=None if whole else _gather_shares(own, batch_size=batch_size, context=context, gather=gather),
            on_error=decided_on_error,
        )
        self._workers = Workers(self._plan, num_processes=num_processes) if num_processes else None
        self._num_threads = num_threads or min(_num_processors(), _MAX_DEFAULT_THREADS)
        self._num_ahead = (num_processes or self._num_threads) + 2 if read_ahead is None else read_ahead
        self._skipped = SkippedRecords.of(decided_on_error)
        self._progress = _Progress(place=_Place(epoch=0, batch=0))
        self._num_epochs: float = 1
        replace(Stage.STRATEGY)  # otherwise Keras ignores `y` etc. given with Batches without a strategy

    def __len__(self) -> int:
        """Returns the number of batches of an epoch."""
        return self._plan.num_batches

    @property
    def position(self) -> tuple[int, int]:
        """The place at which the next iteration starts: epoch and batch, both from 0."""
        return self._progress.place.epoch, self._progress.place.batch

    @property
    def policy(self) -> AutoShardPolicy:
        """The sharding policy in effect: DATA, FILE or OFF, never AUTO."""
        return self._plan.policy

    @property
    def is_shuffled(self) -> bool:
        """Whether the records are shuffled, in a different order for each epoch."""
        return self._plan.seed is not None

    @property
    def order_key(self) -> Mapping[str, Any]:
        """The values that determine which records each batch has, over all processes. Checkpoints store them."""
        plan = self._plan
        found = {"batch_size": plan.batch_size, "seed": plan.seed}
        # If all processes share one order, their number does not matter.
        if plan.shares is None:
            return found | {"policy": AutoShardPolicy.DATA.name, "records": len(plan.source)}
        return found | {"policy": plan.policy.name, "records": list(plan.shares.num_records)}

    def shares_of_batch(self, batch: int) -> tuple[int, ...] | None:
        """Returns the number of rows of a batch that each process yields; None if the processes divide each batch.

        Args:
            batch: the number of the batch, from 0; it may continue across epochs.
        """
        shares = self._plan.shares
        return None if shares is None else shares.of_batch(batch % shares.num_batches)

    @property
    def skipped(self) -> Mapping[int, str]:
        """The reason why each record was skipped so far, by the record's number in the source."""
        return {} if self._skipped is None else self._skipped.reasons

    def seek(self, *, epoch: int, batch: int = 0) -> None:
        """Sets the place at which iterations start, until one of them has run to the end of that epoch.

        Keras reads a batch before it trains. If fewer than two batches are left of the epoch, call this method after
        that read, in a callback's ``on_train_begin``.

        Args:
            epoch: the epoch, from 0.
            batch: the batch within the epoch, from 0; the number of batches of an epoch means the beginning of the next
                epoch.

        Raises:
            InvalidInputError: the epoch or the batch is out of range.
        """
        _check(epoch >= 0, "epoch", epoch, "0 or more")
        _check(0 <= batch <= len(self), "batch", batch, f"0 to {len(self)}")
        self._progress.place = _Place(epoch=epoch + batch // len(self), batch=batch % len(self))

    def map(self, transform: Callable[[Any], Any] | grain.transforms.Map) -> Batches:
        """Returns the same batches with a function applied to each, in the threads or processes that make batches.

        KerasHub's models call it to preprocess what they train on. An iteration over either object moves the place of
        both.

        Args:
            transform: a function of a batch as this object yields it, or Grain's form of one.
        """
        function = transform.map if isinstance(transform, grain.transforms.Map) else transform
        mapped = copy.copy(self)
        mapped._plan = self._plan.followed_by(function)
        mapped._workers = None if self._workers is None else self._workers.for_plan(mapped._plan)
        return mapped

    def repeat(self, num_epochs: int | None = None) -> Batches:
        """Returns the same batches several times: an iteration continues with the next epoch when one ends.

        Give ``fit`` ``steps_per_epoch`` with it; otherwise it takes as many steps as one epoch has. `len` is still the
        number of batches of one epoch. An iteration over either object moves the place of both.

        Args:
            num_epochs: the number of epochs of an iteration; None for no end.
        """
        _check_number("num_epochs", num_epochs, least=1, or_none=True)
        repeated = copy.copy(self)
        repeated._num_epochs = math.inf if num_epochs is None else num_epochs
        return repeated

    def to_iter_dataset(self, read_options: grain.ReadOptions | None = None) -> Batches:
        """Returns this object, which Grain's name for it says: it is iterated. KerasHub's models call it.

        Args:
            read_options: Grain's options. Not needed: the arguments of `Batches` say how far to read ahead.
        """
        del read_options
        return self

    def __iter__(self) -> grain.DatasetIterator:
        """Returns an iterator from the current place to the end of the epoch, or of several after `repeat`."""
        place = self._progress.place

        def finished(epoch: int) -> None:
            nonlocal place
            if self._progress.place is place:
                self._progress.place = place = _Place(epoch=epoch + 1, batch=0)

        return _BatchIterator(
            self._plan,
            read=self._read_from,
            epoch=place.epoch,
            batch=place.batch,
            num_epochs=self._num_epochs,
            finished=finished,
            add_skipped=self._add_skipped,
        )

    def _read_from(self, epoch: int) -> ReadAhead:
        return ReadAhead(
            self._plan,
            epoch=epoch,
            num_ahead=self._num_ahead,
            num_threads=self._num_threads,
            workers=self._workers,
        )

    def _add_skipped(self, skipped: dict[int, str]) -> None:
        for number, reason in skipped.items():
            assert self._skipped is not None
            self._skipped.add(number, reason)

    def __str__(self) -> str:
        """Returns a description with the source, which Grain displays."""
        return f"Batches({self._plan.source}, batch_size={self._plan.batch_size})"

    def iterate(self) -> Iterator[Any]:
        """Begins an epoch, for Keras. Its JAX trainer takes NumPy arrays."""
        return iter(self)

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Begins an epoch, for Keras."""
        return iter(self)

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch, for Keras."""
        return len(self)

    @property
    def batch_size(self) -> int:
        """The number of records of a batch over all processes."""
        return self._plan.batch_size

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller, for Keras."""
        return self.partial_batch_size is not None

    @property
    def partial_batch_size(self) -> int | None:
        """The number of records of the last batch over all processes; None if the last batch is full."""
        num_rows = self._plan.num_rows(len(self) - 1)
        return num_rows if num_rows < self.batch_size else None


@final
class _BatchIterator(grain.DatasetIterator):
    """An iterator over an epoch's batches from a place on, and over those of following epochs if there are several."""

    def __init__(
        self,
        plan: Plan,
        *,
        read: Callable[[int], ReadAhead],
        epoch: int,
        batch: int,
        num_epochs: float,
        finished: Callable[[int], None] | None,
        add_skipped: Callable[[dict[int, str]], None],
    ) -> None:
        super().__init__()
        self._plan = plan
        self._read = read
        self._epoch = epoch
        self._batch = batch
        self._num_epochs_left = num_epochs
        self._finished = finished
        self._add_skipped = add_skipped
        self._ahead: ReadAhead | None = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._batch >= self._plan.num_batches:
            raise StopIteration
        if self._ahead is None:
            self._ahead = self._read(self._epoch)
        # The batch is counted only after it was read, so after an error the same batch is next.
        made = self._ahead.take(self._batch)
        try:
            self._add_skipped(made.skipped)
        except CorruptDataError:
            self._stop_reading()
            raise
        self._batch += 1
        if self._batch == self._plan.num_batches:
            self._stop_reading()
            if self._finished is not None:
                self._finished(self._epoch)
            self._num_epochs_left -= 1
            if self._num_epochs_left > 0:
                self._epoch, self._batch = self._epoch + 1, 0
        return made.value

    def _stop_reading(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        self._ahead = None

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batch": self._batch}

    def set_state(self, state: dict[str, Any]) -> None:
        self._stop_reading()
        self._epoch = int(state["epoch"])
        self._batch = int(state["batch"])
        # The dataset counts only epochs that this iterator began at the dataset's place, not at a restored state.
        self._finished = None

    def close(self) -> None:
        if not self._closed:
            self._stop_reading()
        super().close()

    def __str__(self) -> str:
        return f"Batches(epoch={self._epoch}, batch={self._batch})"


# Without this mark, Grain would add a note to each error from here, saying that it has hidden frames of its own,
# although there are none.
_BatchIterator.__next__.is_traceback_filtered = True  # pyright: ignore[reportFunctionMemberAccess] - a mark


def _check_numbered(source: Any) -> None:
    if isinstance(source, str | bytes | os.PathLike):
        raise InvalidInputError(
            "Batches takes records, not file names", received=source, action="pass RecordSource(...)"
        )
    if isinstance(source, Files) or (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        return
    raise InvalidInputError(
        "Batches reads records by number, which its source does not support",
        received=source,
        allowed="RecordSource, RecordFiles, ArrayRecordSource, or anything with len() and [number]",
        action="give it to fit as it is, after .batch(); or pack compressed files again, without compression",
    )


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open(source: Records | Files, *, policy: AutoShardPolicy, context: InputContext) -> Records:
    if not isinstance(source, Files):
        return source
    if policy is AutoShardPolicy.FILE and context.num_input_pipelines > 1:
        return source.open_files(context.files_to_read(source.num_files))
    return source if isinstance(source, RecordSource) else source.open_files(range(source.num_files))


def _gather_shares(
    own: Records, *, batch_size: int, context: InputContext, gather: Callable[[int], Sequence[int]]
) -> Shares:
    counts = tuple(gather(len(own)))
    _check(
        len(counts) == context.num_input_pipelines,
        "the number of processes differs from the input context",
        f"{len(counts)} processes",
        f"{context.num_input_pipelines}, by the input context",
    )
    return Shares(batch_size=batch_size, num_records=counts)


def _check_number(name: str, value: Any, *, least: int, or_none: bool = False) -> None:
    if value is None and or_none:
        return
    fits = isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)
    _check(fits, name, value, f"a whole number, {least} or more{', or None' if or_none else ''}")


def _check_transforms(transform: Transform | None, random_transform: RandomTransform | None) -> None:
    given = [each for each in (transform, random_transform) if each is not None]
    if len(given) != 1:
        raise InvalidInputError(
            "Batches needs exactly one transform",
            received="none" if not given else "transform and random_transform",
            allowed="transform=, or random_transform= where it is random",
        )
    _check(callable(given[0]), "the transform of Batches", given[0], "a function")


def _check(fits: bool, what: str, received: object, allowed: str) -> None:  # noqa: FBT001 - a private condition
    if not fits:
        raise InvalidInputError(what, received=received, allowed=allowed)
