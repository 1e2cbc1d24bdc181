"""`lockstep.data.Dataset`: creating data sets, iterating over them, and the interface for Keras and strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import grain
import jax
import numpy as np
from typing_extensions import override

from lockstep.data.arguments import check_bool, check_int, int_or_none
from lockstep.data.dataset import plan as steps
from lockstep.data.dataset import records as files
from lockstep.data.dataset import sequential
from lockstep.data.dataset.indexed import Computed, Rows
from lockstep.data.dataset.iterators import DatasetIterator, Positions
from lockstep.data.dataset.plan import AUTOTUNE, UNKNOWN_CARDINALITY, Pass, Plan, plan_of_elements
from lockstep.data.dataset.structure import (
    TensorSpec,
    leaves_of,
    map_leaves,
    spec_of,
    to_element,
)
from lockstep.data.dataset.transformations import AbstractDataset
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.storage import glob_urls
from lockstep.strategies import fitting
from lockstep.strategies.datasets import distribute_dataset
from lockstep.strategies.input import AutoShardPolicy, InputContext, decide_policy
from lockstep.strategies.mesh import AbstractLayout
from lockstep.upstream.keras_data import AbstractBatchAdapter


@final
class Dataset(AbstractDataset, AbstractBatchAdapter):
    """A sequence of elements, by the names and meanings of ``tf.data.Dataset``.

    Class methods such as `from_tensor_slices` create a data set, and methods such as `map` derive another one from it.
    ``fit``, ``evaluate``, ``predict`` and ``strategy.experimental_distribute_dataset`` accept it, and so do loops.

    Each iteration starts again at the first element. It counts as begun when its first element is requested. Iterators
    have ``get_state()`` and ``set_state(state)`` for their position; the state is what JSON can hold.
    """

    def __init__(self, plan: Plan, *, places: Positions | None = None) -> None:
        self._plan = plan
        self._places = Positions() if places is None else places

    @property
    @override
    def plan(self) -> Plan:
        """The plan of the data set; internal to this package."""
        return self._plan

    @override
    def _with_plan(self, plan: Plan) -> Dataset:
        return Dataset(plan)

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Dataset:
        """Creates a data set whose elements are the rows of arrays.

        Args:
            tensors: an array, or a structure of arrays with the same number of rows. A list counts as an array.

        Raises:
            InvalidInputError: If the numbers of rows differ, or if there is no array with rows.
        """
        arrays = to_element(tensors)
        shapes = [np.shape(leaf) for leaf in leaves_of(arrays) if leaf is not None]
        counts = {shape[:1] for shape in shapes}
        if len(counts) != 1 or counts == {()}:
            raise InvalidInputError(
                "the arrays whose rows are to be elements", received=f"shapes {shapes}", allowed="one number of rows"
            )
        rows = Rows(arrays)
        return cls(
            Plan(
                make=lambda data_pass: Rows(arrays),
                cardinality=lambda: len(rows),
                spec=lambda: steps.row_spec(spec_of(arrays)),
            )
        )

    @classmethod
    def from_tensors(cls, tensors: Any) -> Dataset:
        """Creates a data set with a single element."""
        element = to_element(tensors)
        if element is None:
            raise InvalidInputError("the element of from_tensors", received="None", allowed="arrays, numbers, text")
        return cls(plan_of_elements([element]))

    @classmethod
    def range(cls, *args: int, output_type: Any = np.int64) -> Dataset:
        """Creates a data set of the same whole numbers as Python's ``range``.

        Args:
            args: stop; start and stop; or start, stop and step.
            output_type: the dtype of the elements.
        """
        numbers = [int_or_none(arg) for arg in args]
        if not 1 <= len(args) <= 3 or None in numbers or numbers[2:] == [0]:
            raise InvalidInputError(
                "Dataset.range", received=repr(args), allowed="one to three whole numbers, step not 0"
            )
        chosen = range(*(int(number) for number in numbers if number is not None))
        dtype = TensorSpec((), output_type).dtype
        return cls(
            Plan(
                make=lambda data_pass: Computed(
                    len(chosen), lambda places: (places * chosen.step + chosen.start).astype(dtype)
                ),
                cardinality=lambda: len(chosen),
                spec=lambda: TensorSpec((), dtype),
            )
        )

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
    ) -> Dataset:
        """Creates a data set of the values that a generator yields. Each iteration starts the generator again.

        Resuming within an iteration draws the earlier values again: the generator must yield the same ones each time.

        Args:
            generator: a function that is called with ``args`` and returns an iterable.
            output_types: the dtypes of the elements, as a structure; the older alternative to ``output_signature``.
            output_shapes: the shapes of the elements, a structure like ``output_types``; None for unknown shapes.
            args: the arguments of ``generator``.
            output_signature: a structure of `TensorSpec`. Elements are checked against it and converted to its dtypes.
                Without it, dtypes are chosen as by `from_tensors`.
        """
        if not callable(generator):
            raise InvalidInputError(
                "from_generator", received=type(generator).__name__, allowed="a function that returns an iterable"
            )
        if output_signature is not None and output_types is not None:
            raise InvalidInputError("from_generator was given output_signature and output_types", allowed="one of them")
        signature = output_signature
        if output_types is not None:
            shapes = map_leaves(lambda leaf: None, output_types) if output_shapes is None else output_shapes
            signature = map_leaves(lambda dtype, shape: TensorSpec(shape, dtype), output_types, shapes)
        if signature is not None:
            signature = map_leaves(_check_spec, signature)
        arguments = tuple(to_element(arg) for arg in args or ())

        def begin() -> Iterator[Any]:
            values = generator(*arguments)
            if not hasattr(values, "__iter__"):
                raise InvalidInputError(
                    "what from_generator's function returned", received=type(values).__name__, allowed="an iterable"
                )
            for value in values:
                yield to_element(value) if signature is None else _by_signature(signature, value)

        plan = Plan(
            make=lambda data_pass: sequential.Generated(begin),
            cardinality=lambda: UNKNOWN_CARDINALITY,
            spec=lambda: signature,
        )
        return cls(plan if signature is not None else replace(plan, spec=plan.peek))

    @classmethod
    def list_files(cls, file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Dataset:  # noqa: FBT001
        """Creates a data set of the names of files, as text (``bytes``), shuffled by default.

        Args:
            file_pattern: one pattern or several, as `lockstep.storage.glob_urls` accepts them.
            shuffle: whether the names are shuffled, in another order for each iteration; True by default.
            seed: the seed of the order, as for the method ``shuffle``.

        Raises:
            MissingInputError: If nothing was found.
        """
        patterns = files.check_names(file_pattern, of="list_files")
        urls = sorted({url for pattern in patterns for url in glob_urls(pattern)})
        if not urls:
            raise MissingInputError(f"no file matches {', '.join(patterns)}")
        names = np.array([url.encode() for url in urls], object)
        plan = Plan(
            make=lambda data_pass: Rows(files.files_of_process(names, data_pass.files)),
            cardinality=lambda: len(names),
            spec=lambda: TensorSpec((), "string"),
            num_files=len(names),
        )
        listed = cls(plan)
        shuffles = True if shuffle is None else check_bool(shuffle, name="list_files' shuffle")
        return listed.shuffle(len(names), seed) if shuffles else listed

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None) -> Dataset:
        """Combines the elements of several data sets at the same position; ends with the shortest data set.

        Args:
            args: the data sets, or one structure of data sets.
            datasets: a structure of data sets, instead of ``args``.
        """
        members = datasets if datasets is not None else args[0] if len(args) == 1 else args
        leaves = leaves_of(members)
        if not leaves or (args and datasets is not None) or not all(isinstance(leaf, Dataset) for leaf in leaves):
            raise InvalidInputError(
                "Dataset.zip",
                received=[type(leaf).__name__ for leaf in leaves],
                allowed="data sets, or one tuple or dictionary of them",
            )
        plans = [leaf.plan for leaf in leaves]
        numbers = {plan.num_files for plan in plans}
        sizes = {plan.batch_size for plan in plans}
        options = plans[0].options
        for plan in plans[1:]:
            options = options.merged(plan.options)
        return cls(
            Plan(
                make=lambda data_pass: steps.zipped(map_leaves(lambda member: member.plan.make(data_pass), members)),
                cardinality=lambda: steps.count_zipped([plan.cardinality() for plan in plans]),
                spec=lambda: map_leaves(lambda member: member.plan.spec(), members),
                num_files=plans[0].num_files if len(numbers) == 1 else None,
                num_shuffles=max(plan.num_shuffles for plan in plans),
                batch_size=plans[0].batch_size if len(sizes) == 1 else None,
                options=options,
            )
        )

    @final
    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Combines all elements into one value.

        Args:
            initial_state: the state before the first element.
            reduce_func: a function of the current state and an element that returns the next state.
        """
        if not callable(reduce_func):
            raise InvalidInputError("reduce_func", received=type(reduce_func).__name__, allowed="a function")
        state = to_element(initial_state)
        for element in self:
            state = to_element(reduce_func(state, element))
        return state

    def as_numpy_iterator(self) -> grain.DatasetIterator:
        """Returns the same iterator as ``iter``, whose elements are NumPy's in any case."""
        return iter(self)

    def __iter__(self) -> grain.DatasetIterator:
        """Returns an iterator; its iteration begins when its first element is requested."""
        return DatasetIterator(self._plan, self._places)

    def start_at(self, *, epoch: int, batch: int = 0) -> None:
        """Sets the epoch and the element at which the next iteration begins.

        Elements before that position are skipped without computing them, unless the elements of the data set have no
        numbers (after ``filter``, ``interleave``, ...).

        Args:
            epoch: the number of the iteration, from 0.
            batch: the number of the element, from 0; the number of all elements means the start of the next epoch.
        """
        epoch = check_int(epoch, name="epoch", minimum=0)
        count = self.num_batches  # None if several processes divide the data
        batch = check_int(batch, name="batch", minimum=0, maximum=count)
        self._places.set(*((epoch + 1, 0) if count and batch == count else (epoch, batch)))

    def divide(self, policy: AutoShardPolicy, *, input_context: InputContext) -> tuple[Dataset, AutoShardPolicy]:
        """Returns the data set that one of several processes reads, for strategies.

        Args:
            policy: what the processes divide; AUTO leaves it to the data set's options.
            input_context: the process, and the number of processes.

        Returns:
            The data set, and the policy that was decided. Under DATA, it has all global batches. Under FILE and OFF, it
            has batches of this process's own rows; those of all processes together are a global batch.

        Raises:
            InvalidInputError: If the policies contradict each other, or do not fit the data.
        """
        own = self._plan.options.experimental_distribute.auto_shard_policy
        if AutoShardPolicy.AUTO not in (policy, own) and policy is not own:
            raise InvalidInputError(
                "the data set's options and its distribution set different values of auto_shard_policy",
                received=f"{own.name}, distributed with {policy.name}",
                action="set it in one place",
            )
        count, index = input_context.num_input_pipelines, input_context.input_pipeline_id
        decided = decide_policy(
            own if policy is AutoShardPolicy.AUTO else policy, num_files=self._plan.num_files, num_workers=count
        )
        if decided is AutoShardPolicy.DATA or count == 1:
            return self, AutoShardPolicy.DATA
        share = (index, count) if decided is AutoShardPolicy.FILE else None
        plan = self._plan

        def make(data_pass: Pass) -> steps.Pipeline:
            own_rows = plan.make(replace(data_pass, files=share))
            return steps.split_batches_by_process(own_rows, index=index, count=count, batch_size=plan.batch_size)

        divided = replace(plan, make=make, cardinality=lambda: UNKNOWN_CARDINALITY)
        return Dataset(divided, places=self._places), decided

    def iterate(self) -> Iterator[Any]:
        """Begins a pass, for Keras. If several processes divide the data, its batches are global arrays."""
        layout = fitting.current_layout()
        context = self._input_context_for(layout)
        if layout is None or context is None:
            return iter(self)
        return distribute_dataset(layout, context, self).iterate()

    def iterate_mapped(self, change: Callable[[Any], Any]) -> Iterator[Any]:
        """Begins a pass over batches that a function changes before they are placed on devices, for Keras.

        Args:
            change: a function of this process's rows of a batch that returns the batch to use instead.
        """
        plan = self._plan.then(lambda pipeline: steps.mapped(pipeline, change))
        return Dataset(plan, places=self._places).iterate()

    def _input_context_for(self, layout: AbstractLayout | None) -> InputContext | None:
        """Returns this process's input context if it reads rows of its own; None if it reads whole global batches."""
        if layout is None or layout.num_processes == 1:
            return None
        context = InputContext(
            num_input_pipelines=layout.num_processes,
            input_pipeline_id=jax.process_index(),
            num_replicas_in_sync=layout.num_replicas,
        )
        _, policy = self.divide(AutoShardPolicy.AUTO, input_context=context)
        return None if policy is AutoShardPolicy.DATA else context

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Begins a pass, for Keras."""
        return iter(self)

    @property
    def num_batches(self) -> int | None:
        """The number of batches, for Keras; None if it is infinite or unknown."""
        if self._input_context_for(fitting.current_layout()) is not None:
            return None  # other processes may have more rows
        count = int(self.cardinality())
        return count if count >= 0 else None

    @property
    def batch_size(self) -> int | None:
        """The number of rows of a batch, for Keras; None if it is not fixed."""
        return self._plan.batch_size

    @property
    def has_partial_batch(self) -> None:
        """None, which is "unknown" for Keras."""

    @property
    def partial_batch_size(self) -> None:
        """None, which is "unknown" for Keras."""

    def __repr__(self) -> str:
        """Shows the number of elements, if it is known."""
        count = int(self.cardinality())
        return f"Dataset({count if count >= 0 else 'of unknown length' if count == UNKNOWN_CARDINALITY else 'endless'})"


def TFRecordDataset(
    filenames: Any,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
) -> Dataset:
    """Creates a data set of the records of TFRecord files, as bytes.

    Args:
        filenames: a URL, several URLs, a pattern, the name of a data set's split (see `lockstep.data.RecordSource`), or
            a data set of URLs.
        compression_type: "GZIP", "ZLIB", or None or "" for no compression. Records of compressed files have no
            numbers: see `lockstep.data.CompressedRecords`.
        buffer_size: accepted without effect: files are mapped into memory, or read in chunks.
        num_parallel_reads: the number of files from which records are taken in turn. By default, and with `AUTOTUNE`,
            files are read one after another.

    Raises:
        MissingInputError: If nothing was found.
        InvalidInputError: If an argument is not valid.
    """
    compression = files.check_compression(compression_type)
    if buffer_size is not None:
        check_int(buffer_size, name="buffer_size", minimum=0)
    automatic = num_parallel_reads is None or int_or_none(num_parallel_reads) == AUTOTUNE
    cycle = 1 if automatic else check_int(num_parallel_reads, name="num_parallel_reads", minimum=1)
    if isinstance(filenames, Dataset):
        return filenames.interleave(lambda name: TFRecordDataset(name, compression_type), cycle_length=cycle)
    return Dataset(files.record_plan(filenames, compression=compression, cycle_length=cycle))


def _check_spec(leaf: Any) -> TensorSpec:
    if isinstance(leaf, TensorSpec):
        return leaf
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):  # TensorFlow's, JAX's, Keras's
        return TensorSpec(tuple(leaf.shape), getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))
    raise InvalidInputError(
        "output_signature", received=type(leaf).__name__, allowed="a structure of lockstep.data.TensorSpec"
    )


def _by_signature(signature: Any, value: Any) -> Any:
    try:
        return map_leaves(lambda spec, leaf: spec.read(leaf), signature, value)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            "an element does not match its signature",
            received=repr(value)[:80],
            allowed=str(map_leaves(str, signature)),
        ) from error
