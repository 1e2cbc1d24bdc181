"""`lockstep.data.Dataset`: where data sets come from, how they are iterated, what Keras and strategies ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import grain
import jax
import numpy as np
from typing_extensions import override

from lockstep.data.arguments import flag_given, whole_given, whole_or_none
from lockstep.data.dataset import following
from lockstep.data.dataset import plan as steps
from lockstep.data.dataset import records as files
from lockstep.data.dataset.iterators import DatasetIterator, Positions
from lockstep.data.dataset.numbered import Computed, Rows
from lockstep.data.dataset.plan import AUTOTUNE, UNKNOWN_CARDINALITY, Pass, Plan, held
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
    """Elements one after the other, by the names and meanings of ``tf.data.Dataset``.

    Made by its class methods, such as `from_tensor_slices`, and by what they return. ``fit``, ``evaluate`` and
    ``predict`` take it, so do ``strategy.experimental_distribute_dataset`` and loops.

    Each iteration goes through all elements anew; it counts as begun when its first element is asked for. Iterators
    know their place: ``get_state()`` and ``set_state(state)``, of what JSON can hold.
    """

    def __init__(self, plan: Plan, *, places: Positions | None = None) -> None:
        self._plan = plan
        self._places = Positions() if places is None else places

    @property
    @override
    def plan(self) -> Plan:
        """What the data set is made of, for this package."""
        return self._plan

    @override
    def _made(self, plan: Plan) -> Dataset:
        return Dataset(plan)

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Dataset:
        """Makes a data set of the rows of arrays.

        Args:
            tensors: an array, or a structure of them with as many rows each. A list is an array.

        Raises:
            InvalidInputError: the numbers of rows differ, or there are none.
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
                make=lambda each: Rows(arrays),
                cardinality=lambda: len(rows),
                spec=lambda: steps.row_spec(spec_of(arrays)),
            )
        )

    @classmethod
    def from_tensors(cls, tensors: Any) -> Dataset:
        """Makes a data set of one element."""
        element = to_element(tensors)
        if element is None:
            raise InvalidInputError("the element of from_tensors", received="None", allowed="arrays, numbers, text")
        return cls(held([element]))

    @classmethod
    def range(cls, *args: int, output_type: Any = np.int64) -> Dataset:
        """Makes a data set of whole numbers, as Python's ``range`` has them.

        Args:
            args: stop; start and stop; or start, stop and step.
            output_type: their dtype.
        """
        numbers = [whole_or_none(arg) for arg in args]
        if not 1 <= len(args) <= 3 or None in numbers or numbers[2:] == [0]:
            raise InvalidInputError(
                "Dataset.range", received=repr(args), allowed="one to three whole numbers, step not 0"
            )
        chosen = range(*(int(number) for number in numbers if number is not None))
        dtype = TensorSpec((), output_type).dtype
        return cls(
            Plan(
                make=lambda each: Computed(
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
        """Makes a data set of what a generator yields; it is begun anew for each iteration.

        Who goes on within an iteration draws again what was drawn before: it has to yield the same each time.

        Args:
            generator: called with ``args``, returns something to iterate.
            output_types: the elements' dtypes, a structure of them; the older way of ``output_signature``.
            output_shapes: their shapes, a structure like ``output_types``.
            args: of the generator.
            output_signature: a structure of `TensorSpec`; elements are checked and given these dtypes. Without it they
                have the dtypes that `Dataset` gives to what it is given.
        """
        if not callable(generator):
            raise InvalidInputError(
                "from_generator", received=type(generator).__name__, allowed="a function that begins the generator"
            )
        if output_signature is not None and output_types is not None:
            raise InvalidInputError("from_generator was given output_signature and output_types", allowed="one of them")
        signature = output_signature
        if output_types is not None:
            shapes = map_leaves(lambda leaf: None, output_types) if output_shapes is None else output_shapes
            signature = map_leaves(lambda dtype, shape: TensorSpec(shape, dtype), output_types, shapes)
        if signature is not None:
            signature = map_leaves(_spec_given, signature)
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
            make=lambda each: following.Generated(begin),
            cardinality=lambda: UNKNOWN_CARDINALITY,
            spec=lambda: signature,
        )
        return cls(plan if signature is not None else replace(plan, spec=plan.peek))

    @classmethod
    def list_files(cls, file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Dataset:  # noqa: FBT001
        """Makes a data set of the names of files, as text, shuffled unless told otherwise.

        Args:
            file_pattern: a pattern as `lockstep.storage.glob_urls` takes it, or several.
            shuffle: whether they change places, at each iteration anew; True by default.
            seed: see ``shuffle``.

        Raises:
            MissingInputError: nothing was found.
        """
        patterns = files.names_given(file_pattern, of="list_files")
        urls = sorted({url for pattern in patterns for url in glob_urls(pattern)})
        if not urls:
            raise MissingInputError(f"no file matches {', '.join(patterns)}")
        names = np.array([url.encode() for url in urls], object)
        plan = Plan(
            make=lambda each: Rows(files.share_of(names, each.files)),
            cardinality=lambda: len(names),
            spec=lambda: TensorSpec((), "string"),
            num_files=len(names),
        )
        listed = cls(plan)
        shuffles = True if shuffle is None else flag_given(shuffle, of="list_files' shuffle")
        return listed.shuffle(len(names), seed) if shuffles else listed

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None) -> Dataset:
        """Puts the elements of several data sets side by side, as long as all have one.

        Args:
            args: the data sets, or one structure of them.
            datasets: a structure of them.
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
                make=lambda each: steps.together(map_leaves(lambda member: member.plan.make(each), members)),
                cardinality=lambda: steps.count_together([plan.cardinality() for plan in plans]),
                spec=lambda: map_leaves(lambda member: member.plan.spec(), members),
                num_files=plans[0].num_files if len(numbers) == 1 else None,
                num_shuffles=max(plan.num_shuffles for plan in plans),
                batch_size=plans[0].batch_size if len(sizes) == 1 else None,
                options=options,
            )
        )

    @final
    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Folds all elements into one.

        Args:
            initial_state: what to begin with.
            reduce_func: of the state so far and an element, returns the next state.
        """
        if not callable(reduce_func):
            raise InvalidInputError("reduce_func", received=type(reduce_func).__name__, allowed="a function")
        state = to_element(initial_state)
        for element in self:
            state = to_element(reduce_func(state, element))
        return state

    def as_numpy_iterator(self) -> grain.DatasetIterator:
        """Begins an iteration; elements are of NumPy anyway."""
        return iter(self)

    def __iter__(self) -> grain.DatasetIterator:
        """Begins an iteration, as soon as its first element is asked for."""
        return DatasetIterator(self._plan, self._places)

    def start_at(self, *, epoch: int, batch: int = 0) -> None:
        """Has the next iteration be that of another epoch, and begin within it.

        Elements that have numbers are not computed up to there; others are.

        Args:
            epoch: which iteration, from 0.
            batch: its element, from 0; as many as there are means the beginning of the next one.
        """
        epoch = whole_given(epoch, of="epoch", least=0)
        count = self.num_batches  # not of the whole data, where processes divide it
        batch = whole_given(batch, of="batch", least=0, most=count)
        self._places.set(*((epoch + 1, 0) if count and batch == count else (epoch, batch)))

    def divide(self, policy: AutoShardPolicy, *, input_context: InputContext) -> tuple[Dataset, AutoShardPolicy]:
        """Returns what one of several processes reads, for strategies.

        Args:
            policy: what they divide; AUTO leaves it to the data set's options.
            input_context: the process.

        Returns:
            Under DATA all global batches. Under FILE and OFF batches of rows of its own, of which the processes'
            together are a global batch.

        Raises:
            InvalidInputError: the policies contradict each other, or do not fit the data.
        """
        own = self._plan.options.experimental_distribute.auto_shard_policy
        if AutoShardPolicy.AUTO not in (policy, own) and policy is not own:
            raise InvalidInputError(
                "the data set's options have another policy than those of its distribution",
                received=f"{own.name}, distributed with {policy.name}",
                action="say it once",
            )
        count, index = input_context.num_input_pipelines, input_context.input_pipeline_id
        decided = decide_policy(
            own if policy is AutoShardPolicy.AUTO else policy, num_files=self._plan.num_files, num_workers=count
        )
        if decided is AutoShardPolicy.DATA or count == 1:
            return self, AutoShardPolicy.DATA
        share = (index, count) if decided is AutoShardPolicy.FILE else None
        plan = self._plan

        def make(each: Pass) -> steps.Pipeline:
            own_rows = plan.make(replace(each, files=share))
            return steps.own_pieces(own_rows, index=index, count=count, batch_size=plan.batch_size)

        divided = replace(plan, make=make, cardinality=lambda: UNKNOWN_CARDINALITY)
        return Dataset(divided, places=self._places), decided

    def iterate(self) -> Iterator[Any]:
        """Begins a pass, for Keras; where several processes divide the data, as global arrays."""
        layout = fitting.current_layout()
        context = self._divided_for(layout)
        if layout is None or context is None:
            return iter(self)
        return distribute_dataset(layout, context, self).iterate()

    def changed_by(self, change: Callable[[Any], Any]) -> Iterator[Any]:
        """Begins a pass over the batches, changed before they are laid onto devices, for Keras.

        Args:
            change: takes this process's rows of a batch, and returns what takes their place.
        """
        plan = self._plan.then(lambda pipeline: steps.mapped(pipeline, change))
        return Dataset(plan, places=self._places).iterate()

    def _divided_for(self, layout: AbstractLayout | None) -> InputContext | None:
        """Returns this process's place where processes read rows of their own, None where each reads whole batches."""
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
        """How many batches there are, for Keras; None where there is no end, or nobody knows."""
        if self._divided_for(fitting.current_layout()) is not None:
            return None  # the others may have more rows
        count = int(self.cardinality())
        return count if count >= 0 else None

    @property
    def batch_size(self) -> int | None:
        """How many rows a batch has, for Keras; None where that differs."""
        return self._plan.batch_size

    @property
    def has_partial_batch(self) -> None:
        """Unknown, for Keras."""

    @property
    def partial_batch_size(self) -> None:
        """Unknown, for Keras."""

    def __repr__(self) -> str:
        """Says how many elements there are, where that is known."""
        count = int(self.cardinality())
        return f"Dataset({count if count >= 0 else 'of unknown length' if count == UNKNOWN_CARDINALITY else 'endless'})"


def TFRecordDataset(
    filenames: Any,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
) -> Dataset:
    """Makes a data set of the records of TFRecord files, as bytes.

    Args:
        filenames: a URL, several, a pattern, a data set's split (see `lockstep.data.RecordSource`), or a data set of
            URLs.
        compression_type: None or "" for none, "GZIP", "ZLIB". Records of compressed files have no number: see
            `lockstep.data.CompressedRecords`.
        buffer_size: taken: files are mapped, or read in pieces.
        num_parallel_reads: of how many files records are taken in turn; by default, and by `AUTOTUNE`, files follow one
            another.

    Raises:
        MissingInputError: nothing was found.
        InvalidInputError: an argument is none.
    """
    compression = files.compression_given(compression_type)
    if buffer_size is not None:
        whole_given(buffer_size, of="buffer_size", least=0)
    automatic = num_parallel_reads is None or whole_or_none(num_parallel_reads) == AUTOTUNE
    cycle = 1 if automatic else whole_given(num_parallel_reads, of="num_parallel_reads", least=1)
    if isinstance(filenames, Dataset):
        return filenames.interleave(lambda name: TFRecordDataset(name, compression_type), cycle_length=cycle)
    return Dataset(files.record_plan(filenames, compression=compression, cycle_length=cycle))


def _spec_given(leaf: Any) -> TensorSpec:
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
            "an element is not as its signature says",
            received=repr(value)[:80],
            allowed=str(map_leaves(str, signature)),
        ) from error
