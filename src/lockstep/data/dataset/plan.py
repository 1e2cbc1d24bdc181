"""The plan of a data set: how its pipeline is built for each pass, and what is known about its elements beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, cast, final

import grain
import numpy as np

from lockstep.data.arguments import int_or_none
from lockstep.data.dataset import indexed, sequential
from lockstep.data.dataset.indexed import ENDLESS, AbstractIndexed
from lockstep.data.dataset.options import Options
from lockstep.data.dataset.owned_iterators import iterate_part
from lockstep.data.dataset.structure import TensorSpec, leaves_of, map_leaves, spec_of, stack, unstack
from lockstep.errors import InvalidInputError

INFINITE_CARDINALITY: Final = -1
"""The cardinality of a data set without end, by ``tf.data``'s name and number."""

UNKNOWN_CARDINALITY: Final = -2
"""The cardinality of a data set whose number of elements is unknown, by ``tf.data``'s name and number."""

AUTOTUNE: Final = -1
"""Lets Lockstep choose a number of threads or elements, by ``tf.data``'s name and number."""

_MAX_THREADS: Final = 8
_DEFAULT_PREFETCH: Final = 2

Pipeline = AbstractIndexed | grain.IterDataset


@final
@dataclass(frozen=True, kw_only=True)
class Pass:
    """The pass over the data that a pipeline is built for.

    Attributes:
        path: the number of the iteration, and of each repetition or inner data set within it, outermost first.
        files: the index of this process and the number of processes; None if the processes do not divide the files.
    """

    path: tuple[int, ...] = (0,)
    files: tuple[int, int] | None = None

    def within(self, number: int) -> Pass:
        """Returns the pass of a repetition, or of an inner data set, by its number."""
        return replace(self, path=(*self.path, number))


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The description of a data set.

    Attributes:
        make: a function that builds the pipeline of a pass.
        cardinality: a function that returns the number of elements, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`.
        spec: a function that returns the shapes and dtypes of an element; it may have to compute an element.
        num_files: the number of files that contain the data; None if that is not known.
        num_shuffles: the number of times that the data set was shuffled without a seed.
        batch_size: the number of rows of an element; None if it is not fixed.
        options: the options set by ``with_options``.
    """

    make: Callable[[Pass], Pipeline]
    cardinality: Callable[[], int]
    spec: Callable[[], Any]
    num_files: int | None = None
    num_shuffles: int = 0
    batch_size: int | None = None
    options: Options = field(default_factory=Options)

    def then(self, step: Callable[[Pipeline], Pipeline], **changes: Any) -> Plan:
        """Returns the plan with one more step, which is the same in each pass."""
        return replace(self, make=lambda data_pass: step(self.make(data_pass)), **changes)

    def peek(self) -> Any:
        """Computes the first element, and returns its shapes and dtypes; None if there is no element."""
        iterator = iterate_part(as_sequential(self.make(Pass())))
        try:
            element = next(iterator, None)
        finally:
            iterator.close()
        if element is None:
            return None
        return spec_of(element)


def as_sequential(pipeline: Pipeline) -> grain.IterDataset:
    """Returns a pipeline as a data set of Grain's that yields the elements in order."""
    return pipeline.to_sequential() if isinstance(pipeline, AbstractIndexed) else pipeline


def threads_of(num_parallel_calls: int | None) -> int:
    """Returns the number of threads that compute elements; 0 for the thread that requests them."""
    if num_parallel_calls is None:
        return 0
    return min(os.cpu_count() or 1, _MAX_THREADS) if num_parallel_calls == AUTOTUNE else num_parallel_calls


# Steps. Each is a pure function of the pipeline before it.


def mapped(pipeline: Pipeline, function: Callable[[Any], Any], *, num_threads: int = 0) -> Pipeline:
    """Applies a function to each element."""
    if isinstance(pipeline, AbstractIndexed):
        return indexed.Mapped(pipeline, function, num_threads=num_threads)
    return pipeline.map(function)


def filtered(pipeline: Pipeline, predicate: Callable[[Any], bool]) -> Pipeline:
    """Keeps the elements for which a predicate is true."""
    return as_sequential(pipeline).filter(predicate)


def shuffled(pipeline: Pipeline, *, window: int, key: Sequence[int]) -> Pipeline:
    """Shuffles elements within windows."""
    if isinstance(pipeline, AbstractIndexed):
        return indexed.shuffled(pipeline, window=window, key=key)
    seed = int(np.random.SeedSequence(key).generate_state(1)[0]) >> 1  # Grain adds the window's number to the seed
    return grain.experimental.WindowShuffleIterDataset(pipeline, window_size=window, seed=seed)


def batched(
    pipeline: Pipeline,
    size: int,
    *,
    drop_remainder: bool,
    join: Callable[[Sequence[Any]], Any] | None = None,
    num_threads: int = 0,
) -> Pipeline:
    """Joins ``size`` elements at a time."""
    if isinstance(pipeline, AbstractIndexed):
        return indexed.Batched(pipeline, size, drop_remainder=drop_remainder, join=join, num_threads=num_threads)
    return pipeline.batch(size, drop_remainder=drop_remainder, batch_fn=join or stack)


def windowed(
    pipeline: Pipeline,
    *,
    size: int,
    shift: int,
    stride: int,
    drop_remainder: bool,
    join: Callable[[Sequence[Any]], Any],
) -> Pipeline:
    """Groups elements into windows, each of which ``join`` makes into one element."""
    settings: dict[str, Any] = {"size": size, "shift": shift, "stride": stride, "drop_remainder": drop_remainder}
    if isinstance(pipeline, AbstractIndexed):
        return indexed.Windows(pipeline, join=join, **settings)
    return sequential.SlidingWindows(pipeline, join=join, **settings)


def unbatched(pipeline: Pipeline) -> Pipeline:
    """Splits batches into their rows."""
    return sequential.Flattened(as_sequential(pipeline), unstack)


def split_batches_by_process(pipeline: Pipeline, *, index: int, count: int, batch_size: int | None) -> Pipeline:
    """Cuts each batch into one piece per process, for processes that read rows of their own.

    If a batch does not divide evenly, its pieces have two sizes. The larger ones are at different positions in each
    process, so that the pieces of all processes in one step add up to a whole batch.

    Raises:
        InvalidInputError: If an element has no rows. The iterator raises it.
    """

    def cut(batch: Any) -> list[Any]:
        num_rows = max((np.shape(leaf)[0] for leaf in leaves_of(batch) if np.shape(leaf)), default=None)
        if num_rows is None:
            raise InvalidInputError(
                "an element has no rows that could be divided over the processes",
                received=", ".join(type(leaf).__name__ for leaf in leaves_of(batch)),
                action="call .batch() on the data set first, or set auto_shard_policy to DATA",
            )
        even, more = divmod(batch_size or num_rows, count)
        sizes = [even + ((index + piece) % count < more) for piece in range(count)]
        ends = np.minimum(np.cumsum([0, *sizes]), num_rows).tolist()
        return [
            map_leaves(lambda leaf, rows=slice(start, end): leaf[rows] if np.ndim(leaf) else leaf, batch)
            for start, end in pairwise(ends)
            if end > start
        ]

    return sequential.Flattened(as_sequential(pipeline), cut)


def taken(pipeline: Pipeline, count: int) -> Pipeline:
    """Keeps the first ``count`` elements; -1 keeps all."""
    if count < 0:
        return pipeline
    if isinstance(pipeline, AbstractIndexed):
        return indexed.part(pipeline, stop=count)
    return grain.experimental.LimitIterDataset(pipeline, count) if count else indexed.InMemory(())


def skipped(pipeline: Pipeline, count: int) -> Pipeline:
    """Drops the first ``count`` elements; -1 drops all."""
    if count < 0:
        return indexed.InMemory(())
    if isinstance(pipeline, AbstractIndexed):
        return indexed.part(pipeline, start=count)
    return _filter_by_index(pipeline, lambda position: position >= count)


def sharded(pipeline: Pipeline, *, count: int, index: int) -> Pipeline:
    """Keeps every ``count``-th element, from ``index`` on."""
    if isinstance(pipeline, AbstractIndexed):
        return indexed.part(pipeline, start=index, step=count)
    return _filter_by_index(pipeline, lambda position: position % count == index)


def _filter_by_index(pipeline: grain.IterDataset, wanted: Callable[[int], bool]) -> grain.IterDataset:
    pairs = pipeline.map_with_index(lambda position, element: (position, element))
    return pairs.filter(lambda pair: wanted(pair[0])).map(lambda pair: pair[1])


def enumerated(pipeline: Pipeline, start: int) -> Pipeline:
    """Puts the number of each element, counted from ``start``, before the element."""
    if isinstance(pipeline, AbstractIndexed):
        return indexed.Zipped((indexed.Computed(ENDLESS, lambda numbers: numbers + start), pipeline))
    return pipeline.map_with_index(lambda position, element: (np.int64(position + start), element))


def prefetched(pipeline: Pipeline, count: int) -> Pipeline:
    """Computes elements in a thread before they are requested."""
    count = _DEFAULT_PREFETCH if count == AUTOTUNE else count
    if not count:
        return pipeline
    if isinstance(pipeline, AbstractIndexed):
        return indexed.Prefetched(pipeline, count)
    return grain.experimental.ThreadPrefetchIterDataset(pipeline, prefetch_buffer_size=count)


def zipped(pipelines: Any) -> Pipeline:
    """Combines the elements of several data sets at the same position, in the structure of ``pipelines``."""
    members: list[Pipeline] = leaves_of(pipelines)
    if all(isinstance(member, AbstractIndexed) for member in members):
        return indexed.Zipped(pipelines)
    tuples = grain.experimental.ZipIterDataset([as_sequential(member) for member in members], strict=False)

    def restore_structure(elements: tuple[Any, ...]) -> Any:
        remaining = iter(elements)
        return map_leaves(lambda member: next(remaining), pipelines)

    return tuples.map(restore_structure)


def repeated(make: Callable[[int], Pipeline], count: int) -> Pipeline:
    """Repeats a data set, building its pipeline again for each repetition.

    Args:
        make: a function that builds the pipeline of a repetition by its number.
        count: the number of repetitions; -1 for endless repetition.
    """
    if count == 0:
        return indexed.InMemory(())
    first = make(0)
    if not isinstance(first, AbstractIndexed):
        times = indexed.Computed(ENDLESS if count < 0 else count, lambda numbers: numbers)
        return sequential.Interleaved(
            times.to_sequential(), lambda _, number: as_sequential(make(number)), ends_when_empty=True
        )
    if len(first) in (0, ENDLESS):
        return first
    length = ENDLESS if count < 0 else count * len(first)
    return indexed.Repeated(cast("Callable[[int], AbstractIndexed]", make), length=length, size=len(first))


def concatenated(first: Pipeline, second: Pipeline) -> Pipeline:
    """Appends one data set to another."""
    if isinstance(first, AbstractIndexed) and isinstance(second, AbstractIndexed):
        return first if len(first) == ENDLESS else indexed.Concatenated(first, second)
    both = [as_sequential(first), as_sequential(second)]
    return sequential.Interleaved(indexed.InMemory((0, 1)).to_sequential(), lambda which, _: both[which])


def interleaved(pipeline: Pipeline, opened: sequential.Open, *, cycle_length: int, block_length: int) -> Pipeline:
    """Makes a data set from each element, and takes elements from several of these data sets in turn."""
    return sequential.Interleaved(as_sequential(pipeline), opened, cycle_length=cycle_length, block_length=block_length)


def cache_of(plan: Plan) -> Callable[[Pass], Pipeline]:
    """Returns a function that builds a pipeline whose elements are computed once, for all passes.

    The elements are those of the first pass, whichever pass computes them, so that a resumed run has the same ones.
    """
    caches: dict[tuple[int, int] | None, Any] = {}

    def make(data_pass: Pass) -> Pipeline:
        first_pass = replace(Pass(), files=data_pass.files)
        pipeline = plan.make(first_pass)
        if isinstance(pipeline, AbstractIndexed):
            return indexed.Cached(pipeline, caches.setdefault(data_pass.files, {}))
        new_cache = sequential.ElementCache(lambda: as_sequential(plan.make(first_pass)))
        return sequential.Cached(caches.setdefault(data_pass.files, new_cache))

    return make


# Cardinalities, by the rules of tf.data.


def count_batches(count: int, size: int, *, drop_remainder: bool) -> int:
    """Returns the cardinality after joining ``size`` elements at a time."""
    return count if count < 0 else count // size if drop_remainder else -(-count // size)


def count_windows(count: int, *, span: int, shift: int, drop_remainder: bool) -> int:
    """Returns the number of windows; ``span`` is the distance from a window's first element to the end of its last."""
    return count if count < 0 else max(0, (count - span) // shift + 1) if drop_remainder else -(-count // shift)


def count_taken(count: int, wanted: int) -> int:
    """Returns the cardinality of the first ``wanted`` elements."""
    if wanted < 0 or count == UNKNOWN_CARDINALITY:
        return count
    return wanted if count == INFINITE_CARDINALITY else min(count, wanted)


def count_skipped(count: int, skipped: int) -> int:
    """Returns the cardinality without the first ``skipped`` elements."""
    if skipped < 0:
        return 0
    return count if count < 0 else max(0, count - skipped)


def count_shard(count: int, *, num_shards: int, index: int) -> int:
    """Returns the cardinality of every ``num_shards``-th element, from ``index`` on."""
    return count if count < 0 else len(range(index, count, num_shards))


def count_repeated(count: int, times: int) -> int:
    """Returns the cardinality after ``times`` repetitions; -1 for endless repetition."""
    if times == 0 or count == 0:
        return 0
    if times < 0:
        return INFINITE_CARDINALITY
    return count if count < 0 else count * times


def count_concatenated(first: int, second: int) -> int:
    """Returns the cardinality of two data sets, one after the other."""
    counts = (first, second)
    for answer in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
        if answer in counts:
            return answer
    return first + second


def count_zipped(counts: Sequence[int]) -> int:
    """Returns the cardinality of data sets whose elements are combined: that of the shortest."""
    if UNKNOWN_CARDINALITY in counts:
        return UNKNOWN_CARDINALITY
    finite = [count for count in counts if count >= 0]
    return min(finite) if finite else INFINITE_CARDINALITY


def batch_spec(spec: Any, num_rows: int | None) -> Any:
    """Returns the spec of a batch of elements with this spec; ``num_rows`` is None if it is not known."""

    def add(leaf: TensorSpec | None) -> TensorSpec | None:
        if leaf is None or leaf.shape is None:
            return leaf
        return TensorSpec((num_rows, *leaf.shape), leaf.dtype)

    return map_leaves(add, spec)


def row_spec(spec: Any) -> Any:
    """Returns the spec of a row of an element with this spec."""

    def drop(leaf: TensorSpec | None) -> TensorSpec | None:
        return leaf if leaf is None or not leaf.shape else TensorSpec(leaf.shape[1:], leaf.dtype)

    return map_leaves(drop, spec)


def parallel_calls(value: Any) -> int | None:
    """Checks ``num_parallel_calls``, and returns it: a number, `AUTOTUNE` or None.

    Raises:
        InvalidInputError: If the value is something else.
    """
    number = int_or_none(value)
    if value is None or (number is not None and (number == AUTOTUNE or number >= 1)):
        return number
    raise InvalidInputError("num_parallel_calls", received=repr(value), allowed="1 or more, AUTOTUNE, None")


def plan_of_elements(elements: Sequence[Any]) -> Plan:
    """Returns the plan of a data set with these elements."""
    return Plan(
        make=lambda data_pass: indexed.InMemory(elements),
        cardinality=lambda: len(elements),
        spec=lambda: spec_of(elements[0]) if elements else None,
    )
