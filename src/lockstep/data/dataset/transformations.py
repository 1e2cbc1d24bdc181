"""Transformations of data sets by ``tf.data``'s names: the methods of `lockstep.data.Dataset` that return another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Self, final

import grain
import numpy as np

from lockstep.data.arguments import check_bool, check_callable, check_int, check_optional_bool, int_or_none
from lockstep.data.dataset import plan as steps
from lockstep.data.dataset.options import Options
from lockstep.data.dataset.plan import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Pass, Pipeline, Plan
from lockstep.data.dataset.structure import (
    TensorSpec,
    call_with_element,
    describe,
    leaves_of,
    map_leaves,
    pad,
    to_element,
    with_unknown_rows,
)
from lockstep.errors import InvalidInputError
from lockstep.upstream.keras_variables import get_random_seed

_CYCLE_LENGTH: Final = 10
"""The default ``cycle_length`` of ``interleave``: the same on every machine, because it decides the order."""


class AbstractDataset(ABC):
    """The methods that derive a data set from another. None of them changes the data set that it is called on.

    Attributes:
        is_lockstep_dataset: marks a data set that is an element of another one.
    """

    is_lockstep_dataset: Final = True

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """The plan of the data set."""

    @abstractmethod
    def _with_plan(self, plan: Plan) -> Self:
        """Returns the data set of another plan, of the same class."""

    @final
    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,  # noqa: FBT001 - as in tf.data
    ) -> Self:
        """Applies a function to each element; the members of a tuple are separate arguments.

        Args:
            map_func: gets NumPy arrays; returns arrays of NumPy, JAX or Keras, numbers, text, or structures of these.
            num_parallel_calls: the number of threads; `AUTOTUNE` for one per processor, at most 8. Elements that have
                no number (after ``filter``, ``interleave``, ...) are computed in one thread.
            deterministic: accepted without effect: the order never depends on threads.
        """
        function = check_callable(map_func, "map_func")
        threads = steps.threads_of(steps.parallel_calls(num_parallel_calls))
        check_optional_bool(deterministic, "deterministic")

        def apply(element: Any) -> Any:
            value = call_with_element(function, element)
            found = to_element(tuple(value) if isinstance(value, list) else value)  # as in tf.data
            if found is None or any(isinstance(leaf, AbstractDataset) for leaf in leaves_of(found)):
                raise InvalidInputError(
                    "map's function returned no element",
                    received="None" if found is None else "a data set",
                    allowed="arrays, numbers, text, tuples and dictionaries of these",
                    action=None if found is None else "take flat_map or interleave",
                )
            return found

        plan = self.plan.then(lambda pipeline: steps.mapped(pipeline, apply, num_threads=threads))
        before = self.plan.spec
        return self._with_plan(replace(plan, spec=lambda: with_unknown_rows(plan.peek(), before())))

    @final
    def filter(self, predicate: Callable[..., Any]) -> Self:
        """Keeps the elements for which a function returns True.

        Args:
            predicate: returns one truth value; gets its arguments as ``map``'s function does.
        """
        function = check_callable(predicate, "predicate")

        def holds(element: Any) -> bool:
            found = to_element(call_with_element(function, element))
            if not isinstance(found, np.bool_):
                raise InvalidInputError(
                    "filter's predicate returned no truth value",
                    received=describe(found),
                    allowed="one True or False",
                )
            return bool(found)

        return self._with_plan(
            self.plan.then(lambda pipeline: steps.filtered(pipeline, holds), cardinality=lambda: UNKNOWN_CARDINALITY)
        )

    @final
    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,  # noqa: FBT001 - as in tf.data
    ) -> Self:
        """Shuffles the elements: all with each other if ``buffer_size`` is at least the size of the data set.

        Otherwise, each window of ``buffer_size`` consecutive elements is shuffled by itself. (``tf.data`` draws from a
        sliding buffer.) The order is a function of the seed and the number of the iteration.

        Args:
            buffer_size: the number of consecutive elements that are shuffled with each other.
            seed: the seed of the order. By default, the one of ``keras.utils.set_random_seed``, or 0 if it is not set.
            reshuffle_each_iteration: whether each iteration, and each repetition of ``repeat``, has another order;
                True by default.
        """
        window = check_int(buffer_size, name="shuffle's buffer_size", minimum=1)
        check_optional_bool(reshuffle_each_iteration, "reshuffle_each_iteration")
        number = int_or_none(seed)
        if seed is not None and number is None:
            raise InvalidInputError("shuffle's seed", received=repr(seed), allowed="a whole number, None")
        # Counts the shuffles of this data set alone: the seed must not depend on other data sets of the process.
        depth = self.plan.num_shuffles
        base = (get_random_seed() or 0, depth) if number is None else (number,)
        key = tuple(int(part) % 2**64 for part in base)
        fixed = reshuffle_each_iteration is False
        make = self.plan.make

        def shuffled(data_pass: Pass) -> Pipeline:
            return steps.shuffled(make(data_pass), window=window, key=key if fixed else (*key, *data_pass.path))

        return self._with_plan(replace(self.plan, make=shuffled, num_shuffles=depth + (number is None)))

    @final
    def repeat(self, count: int | None = None) -> Self:
        """Repeats the data set.

        Args:
            count: the number of repetitions; None or -1 for endless repetition.
        """
        times = -1 if count is None else check_int(count, name="repeat's count", minimum=-1)
        plan = self.plan

        def make(data_pass: Pass) -> Pipeline:
            return steps.repeated(lambda number: plan.make(data_pass.within(number)), times)

        return self._with_plan(
            replace(plan, make=make, cardinality=lambda: steps.count_repeated(plan.cardinality(), times))
        )

    @final
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,  # noqa: FBT001 - as in tf.data
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,  # noqa: FBT001 - as in tf.data
    ) -> Self:
        """Joins consecutive elements along a new first dimension.

        Args:
            batch_size: the number of elements in a batch.
            drop_remainder: whether a last batch that would be smaller is dropped.
            num_parallel_calls: the number of threads that make batches; see ``map``.
            deterministic: accepted without effect; see ``map``.
        """
        return self._batched(batch_size, drop_remainder, num_parallel_calls, deterministic, join=None, spec=None)

    @final
    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,  # noqa: FBT001 - as in tf.data
    ) -> Self:
        """Joins consecutive elements whose arrays differ in size, padding each at its end.

        Args:
            batch_size: the number of elements in a batch.
            padded_shapes: a structure like an element's, with a shape for each leaf; a dimension of None or -1 is as
                large as the largest in the batch. None makes all dimensions so.
            padding_values: a structure of values to pad with, or one value; zeros and empty text by default.
            drop_remainder: whether a last batch that would be smaller is dropped.
        """

        def join(elements: Sequence[Any]) -> Any:
            return pad(elements, padded_shapes, padding_values)

        def spec(of_batch: Any) -> Any:
            shapes = map_leaves(lambda leaf: None, of_batch) if padded_shapes is None else padded_shapes

            def one(leaf: Any, shape: Any) -> Any:
                if leaf is None:
                    return None
                inner = (None,) * (len(leaf.shape) - 1) if shape is None else TensorSpec(shape, leaf.dtype).shape
                return TensorSpec((leaf.shape[0], *inner), leaf.dtype)

            return map_leaves(one, of_batch, shapes)

        return self._batched(batch_size, drop_remainder, None, None, join=join, spec=spec)

    def _batched(
        self,
        batch_size: Any,
        drop_remainder: Any,
        num_parallel_calls: Any,
        deterministic: Any,
        *,
        join: Callable[[Sequence[Any]], Any] | None,
        spec: Callable[[Any], Any] | None,
    ) -> Self:
        size = check_int(batch_size, name="batch_size", minimum=1)
        drop = check_bool(drop_remainder, name="drop_remainder")
        threads = steps.threads_of(steps.parallel_calls(num_parallel_calls))
        check_optional_bool(deterministic, "deterministic")
        plan = self.plan

        def batch_spec() -> Any:
            found = steps.batch_spec(plan.spec(), size if drop else None)
            return found if spec is None else spec(found)

        return self._with_plan(
            plan.then(
                lambda pipeline: steps.batched(pipeline, size, drop_remainder=drop, join=join, num_threads=threads),
                cardinality=lambda: steps.count_batches(plan.cardinality(), size, drop_remainder=drop),
                spec=batch_spec,
                batch_size=size,
            )
        )

    @final
    def unbatch(self) -> Self:
        """Splits batches: each row becomes an element."""
        plan = self.plan
        return self._with_plan(
            plan.then(
                steps.unbatched,
                cardinality=lambda: UNKNOWN_CARDINALITY,
                spec=lambda: steps.row_spec(plan.spec()),
                batch_size=None,
            )
        )

    @final
    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,  # noqa: FBT001 - as in tf.data
    ) -> Self:
        """Groups consecutive elements into windows. A window is a data set, or a structure with one for each member.

        Args:
            size: the number of elements in a window.
            shift: the distance between the first elements of two consecutive windows; ``size`` by default.
            stride: the distance between two consecutive elements of a window.
            drop_remainder: whether windows that would be smaller are dropped.
        """
        settings = {
            "size": check_int(size, name="window's size", minimum=1),
            "shift": check_int(size if shift is None else shift, name="window's shift", minimum=1),
            "stride": check_int(stride, name="window's stride", minimum=1),
            "drop_remainder": check_bool(drop_remainder, name="drop_remainder"),
        }
        span = (settings["size"] - 1) * settings["stride"] + 1

        def join(elements: Sequence[Any]) -> Any:
            return map_leaves(lambda *leaves: self._with_plan(steps.plan_of_elements(leaves)), *elements)

        plan = self.plan
        return self._with_plan(
            plan.then(
                lambda pipeline: steps.windowed(pipeline, join=join, **settings),
                cardinality=lambda: steps.count_windows(
                    plan.cardinality(), span=span, shift=settings["shift"], drop_remainder=settings["drop_remainder"]
                ),
                batch_size=None,
            )
        )

    @final
    def take(self, count: int) -> Self:
        """Keeps the first ``count`` elements; -1 keeps all."""
        wanted = check_int(count, name="take's count", minimum=-1)
        plan = self.plan
        return self._with_plan(
            plan.then(
                lambda pipeline: steps.taken(pipeline, wanted),
                cardinality=lambda: steps.count_taken(plan.cardinality(), wanted),
            )
        )

    @final
    def skip(self, count: int) -> Self:
        """Drops the first ``count`` elements; -1 drops all."""
        number = check_int(count, name="skip's count", minimum=-1)
        plan = self.plan
        return self._with_plan(
            plan.then(
                lambda pipeline: steps.skipped(pipeline, number),
                cardinality=lambda: steps.count_skipped(plan.cardinality(), number),
            )
        )

    @final
    def shard(self, num_shards: int, index: int) -> Self:
        """Keeps every ``num_shards``-th element, from ``index`` on."""
        shards = check_int(num_shards, name="shard's num_shards", minimum=1)
        first = check_int(index, name="shard's index", minimum=0, maximum=shards - 1)
        plan = self.plan
        return self._with_plan(
            plan.then(
                lambda pipeline: steps.sharded(pipeline, count=shards, index=first),
                cardinality=lambda: steps.count_shard(plan.cardinality(), num_shards=shards, index=first),
            )
        )

    @final
    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,  # noqa: FBT001 - as in tf.data
    ) -> Self:
        """Makes a data set from each element, and takes elements from several of these data sets in turn.

        Args:
            map_func: returns a data set; gets its arguments as ``map``'s function does.
            cycle_length: the number of data sets that are read in turn; 10 by default.
            block_length: the number of consecutive elements from each data set; 1 by default.
            num_parallel_calls: accepted without effect: the calling thread reads, or that of a later ``prefetch``.
            deterministic: accepted without effect; see ``map``.
        """
        steps.parallel_calls(num_parallel_calls)
        check_optional_bool(deterministic, "deterministic")
        automatic = cycle_length is None or int_or_none(cycle_length) == AUTOTUNE
        cycle = _CYCLE_LENGTH if automatic else check_int(cycle_length, name="cycle_length", minimum=1)
        block = 1 if block_length is None else check_int(block_length, name="block_length", minimum=1)
        return self._interleaved(check_callable(map_func, "map_func"), cycle_length=cycle, block_length=block)

    @final
    def flat_map(self, map_func: Callable[..., Any]) -> Self:
        """Makes a data set from each element, and concatenates these data sets.

        Args:
            map_func: returns a data set; gets its arguments as ``map``'s function does.
        """
        return self._interleaved(check_callable(map_func, "map_func"), cycle_length=1, block_length=1)

    def _interleaved(self, function: Callable[..., Any], *, cycle_length: int, block_length: int) -> Self:
        make = self.plan.make

        def made(data_pass: Pass) -> Pipeline:
            inner = replace(data_pass, files=None)  # files are divided among processes in `make` already

            def opened(element: Any, number: int) -> grain.IterDataset:
                dataset = call_with_element(function, element)
                if not isinstance(dataset, AbstractDataset):
                    raise InvalidInputError(
                        "the result of flat_map's or interleave's function",
                        received=type(dataset).__name__,
                        allowed="a lockstep.data.Dataset",
                    )
                return steps.as_sequential(dataset.plan.make(inner.within(number)))

            return steps.interleaved(make(data_pass), opened, cycle_length=cycle_length, block_length=block_length)

        plan = replace(self.plan, make=made, cardinality=lambda: UNKNOWN_CARDINALITY, batch_size=None)
        return self._with_plan(replace(plan, spec=plan.peek))

    @final
    def concatenate(self, dataset: AbstractDataset) -> Self:
        """Appends the elements of another data set."""
        if not isinstance(dataset, AbstractDataset):
            raise InvalidInputError("concatenate", received=type(dataset).__name__, allowed="a lockstep.data.Dataset")
        first, second = self.plan, dataset.plan
        sizes = {first.batch_size, second.batch_size}
        num_files = None
        if first.num_files is not None and second.num_files is not None:
            num_files = min(first.num_files, second.num_files)
        return self._with_plan(
            replace(
                first,
                make=lambda data_pass: steps.concatenated(first.make(data_pass), second.make(data_pass)),
                cardinality=lambda: steps.count_concatenated(first.cardinality(), second.cardinality()),
                num_files=num_files,
                num_shuffles=max(first.num_shuffles, second.num_shuffles),
                batch_size=first.batch_size if len(sizes) == 1 else None,
                options=first.options.merged(second.options),
            )
        )

    @final
    def cache(self, filename: str = "") -> Self:
        """Keeps computed elements in memory. Random values of earlier steps are the same in each iteration then.

        Args:
            filename: only "" is accepted, because elements are kept in memory.
        """
        if filename != "":
            raise InvalidInputError(
                "cache keeps elements in memory, not in files",
                received=repr(filename),
                action="leave the name out; where memory does not hold them, lockstep.data.pack what was computed",
            )
        return self._with_plan(replace(self.plan, make=steps.cache_of(self.plan)))

    @final
    def prefetch(self, buffer_size: int) -> Self:
        """Computes elements in a thread before they are requested.

        Args:
            buffer_size: the number of elements that are computed ahead; `AUTOTUNE` for 2.
        """
        count = check_int(buffer_size, name="prefetch's buffer_size", minimum=AUTOTUNE)
        return self._with_plan(self.plan.then(lambda pipeline: steps.prefetched(pipeline, count)))

    @final
    def enumerate(self, start: int = 0) -> Self:
        """Pairs each element with its number, an int64 that comes first and is counted from ``start``."""
        first = check_int(start, name="enumerate's start", minimum=-(2**62))
        plan = self.plan
        return self._with_plan(
            plan.then(
                lambda pipeline: steps.enumerated(pipeline, first),
                spec=lambda: (TensorSpec((), np.int64), plan.spec()),
                batch_size=None,
            )
        )

    @final
    def apply(self, transformation_func: Callable[[Self], Any]) -> Any:
        """Returns the data set that a function makes from this one."""
        found = check_callable(transformation_func, "transformation_func")(self)
        if not isinstance(found, AbstractDataset):
            raise InvalidInputError(
                "what apply's function returned", received=type(found).__name__, allowed="a lockstep.data.Dataset"
            )
        return found

    @final
    def options(self) -> Options:
        """Returns the options that were set."""
        return Options().merged(self.plan.options)

    @final
    def with_options(self, options: Options) -> Self:
        """Sets options; earlier options stay where the new ones are not set."""
        if not isinstance(options, Options):
            raise InvalidInputError("with_options", received=type(options).__name__, allowed="lockstep.data.Options")
        return self._with_plan(replace(self.plan, options=self.plan.options.merged(options)))

    @final
    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of an element, as `TensorSpec`; computes the first element if functions decide them."""
        return self.plan.spec()

    @final
    def cardinality(self) -> np.int64:
        """Returns the number of elements, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""
        return np.int64(self.plan.cardinality())

    @final
    def __len__(self) -> int:
        """Returns the number of elements.

        Raises:
            TypeError: If the number is infinite or unknown, as ``tf.data`` and Python's ``len`` have it.
        """
        count = int(self.cardinality())
        if count < 0:
            is_endless = count == INFINITE_CARDINALITY
            raise TypeError("the data set has no end" if is_endless else "the length of the data set is unknown")
        return count

    @final
    def __bool__(self) -> bool:
        """Returns True, because a data set of unknown length has no length by which Python could decide it."""
        return True
