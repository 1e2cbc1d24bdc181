"""Distributed data sets: batches divided over the replicas, for ``strategy.run``. The names are ``tf.distribute``'s."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self, cast, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lockstep.errors import InvalidInputError
from lockstep.strategies import fitting
from lockstep.strategies.dataset_readers import Change, passes_of, read_own, read_shared, read_whole
from lockstep.strategies.input import (
    AutoShardPolicy,
    DividedData,
    GlobalBatches,
    InputContext,
    decide_policy,
)
from lockstep.strategies.loops.replica import PerReplica
from lockstep.strategies.mesh import BATCH_AXIS, AbstractLayout
from lockstep.strategies.shares import count_rows
from lockstep.upstream.jax_tracing import is_tracing
from lockstep.upstream.keras_data import AbstractBatchAdapter

_ENDLESS: Final = sys.maxsize // 2
"""The smallest length that Grain gives to a data set that repeats without end."""


@final
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How data is distributed. The names are those of ``tf.distribute.InputOptions``.

    Attributes:
        auto_shard_policy: what several processes divide among themselves. (``tf.data`` has this in the data set's own
            options.) AUTO: `lockstep.data.Batches` has its own policy; of any other data, every process yields the same
            global batches and keeps its own rows (DATA). OFF: each process yields rows of its own.
        experimental_per_replica_buffer_size: the number of batches that are placed on the devices before they are
            requested. By default, 1 on accelerators and 0 on CPUs, where reading ahead gains nothing.

    Raises:
        InvalidInputError: the number of batches is negative.
    """

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO
    experimental_per_replica_buffer_size: int | None = None

    def __post_init__(self) -> None:
        size = self.experimental_per_replica_buffer_size
        if size is not None and size < 0:
            raise InvalidInputError("experimental_per_replica_buffer_size", received=size, allowed="0 or more")


@final
@dataclass(frozen=True, kw_only=True)
class ValueContext:
    """The replica that a value is for. The names are those of ``tf.distribute.experimental.ValueContext``.

    Attributes:
        replica_id_in_sync_group: the replica's number over all processes, from 0.
        num_replicas_in_sync: the number of replicas.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


@final
class DistributedDataset(AbstractBatchAdapter):
    """Batches divided over a strategy's replicas. The strategy's methods create it.

    Each iteration is a pass over the data. It yields the structure that the data has, with each array as `PerReplica`.
    For a batch of b rows on n replicas, g = gcd(b, n) replicas have b / g rows each, and the others hold copies.
    ``fit``, ``evaluate`` and ``predict`` also take a distributed data set.

    With several processes, all of them must iterate, and equally often, because the processes may have to exchange
    their numbers of rows.

    Args:
        layout: the strategy's layout.
        read: a function that begins a pass. It takes the function that changes each batch before it is placed, and
            yields global arrays on the devices. An array is None if a batch has no row.
        num_batches: the number of batches of a pass, None if unknown.
        options: how many batches are read ahead.
    """

    def __init__(
        self,
        layout: AbstractLayout,
        read: Callable[[Change], Iterator[Any]],
        *,
        num_batches: int | None,
        options: InputOptions,
    ) -> None:
        self._layout = layout
        self._read = read
        self._num_batches = num_batches
        ahead = options.experimental_per_replica_buffer_size
        self._num_ahead = ahead if ahead is not None else int(layout.devices[0].platform != "cpu")
        self._stackers: dict[int, Callable[[Any], Any]] = {}

    def __iter__(self) -> DistributedIterator:
        """Begins a pass over the data."""
        return DistributedIterator(_ahead(map(self._stack, self._read(_same)), num_ahead=self._num_ahead))

    def __len__(self) -> int:
        """Returns the number of batches of a pass.

        Raises:
            TypeError: the number is unknown; Python's ``len`` raises this error too.
        """
        if self._num_batches is None:
            raise TypeError("this data set does not know how many batches it has")
        return self._num_batches

    def iterate(self) -> Iterator[Any]:
        """Yields whole global batches, for Keras.

        Raises:
            InvalidInputError: the data was distributed by another strategy than the current one.
        """
        return self.iterate_mapped(_same)

    def iterate_mapped(self, change: Change) -> Iterator[Any]:
        """Yields whole global batches whose rows are changed before they are placed.

        Args:
            change: a function that takes this process's rows of a batch and returns their replacement.

        Raises:
            InvalidInputError: the data was distributed by another strategy than the current one.
        """
        current = fitting.current_layout()
        if current is not self._layout:
            raise InvalidInputError(
                "the data was distributed by another strategy than the model's",
                received=f"data of {self._layout.name}, a model of {current.name if current else 'no strategy'}",
                action="distribute it by the strategy that the model was compiled under",
            )
        return self._read(change)

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Yields whole global batches, for Keras."""
        return self.iterate()

    @property
    def num_batches(self) -> int | None:
        """The number of batches of a pass, None if unknown. Keras reads it."""
        return self._num_batches

    @property
    def batch_size(self) -> None:
        """Unknown, for Keras."""

    @property
    def has_partial_batch(self) -> None:
        """Unknown, for Keras."""

    @property
    def partial_batch_size(self) -> None:
        """Unknown, for Keras."""

    def _stack(self, batch: Any) -> Any:
        if self._layout.places_within_steps:
            return keras.tree.map_structure(_alone, batch)
        num_groups = math.gcd(count_rows(batch), self._layout.num_replicas)
        stack = self._stackers.get(num_groups)
        if stack is None:
            sharding = NamedSharding(self._layout.data_mesh(num_groups), PartitionSpec(BATCH_AXIS))

            def split(leaves: list[Any]) -> list[Any]:
                return [_split(leaf, num_groups) for leaf in leaves]

            stack = self._stackers[num_groups] = jax.jit(split, out_shardings=sharding)
        stacked = iter(stack([leaf for leaf in keras.tree.flatten(batch) if leaf is not None]))

        def wrap(leaf: Any) -> PerReplica | None:
            return None if leaf is None else PerReplica(next(stacked))

        return keras.tree.map_structure(wrap, batch)


def _same(batch: Any) -> Any:
    return batch


def _alone(leaf: Any) -> PerReplica | None:
    """Returns the value of the only replica. An array in host memory stays there: the step that takes it places it."""
    if leaf is None:
        return None
    array = leaf if isinstance(leaf, jax.Array) else leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
    return PerReplica(array[None])


def _split(leaf: Any, num_groups: int) -> Any:
    """Divides the rows into groups. An array without rows (a scalar) is repeated for each group."""
    if not leaf.ndim:
        return jnp.broadcast_to(leaf, (num_groups,))
    return leaf.reshape(num_groups, leaf.shape[0] // num_groups, *leaf.shape[1:])


@final
class DistributedIterator:
    """One pass over a distributed data set; see `DistributedDataset`.

    Args:
        batches: the batches, divided over the replicas.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Self:
        """Returns itself, to continue this pass."""
        return self

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            StopIteration: the data of all processes has ended.
            InvalidInputError: a function is being traced. The batch would become a constant of the compiled program,
                the same in each call.
        """
        if is_tracing():
            raise InvalidInputError(
                "a batch was taken from a distributed data set within a function that is being compiled",
                allowed="batches as arguments of the function",
                action="take the batch outside, and pass it: train_step(next(iterator))",
            )
        return next(self._batches)

    def get_next(self) -> Any:
        """Returns the next batch; see `__next__`. The name is from ``tf.distribute``."""
        return next(self)


def distribute_dataset(
    layout: AbstractLayout, input_context: InputContext, dataset: Any, options: InputOptions | None = None
) -> DistributedDataset:
    """Divides the global batches of a data set over the replicas: ``strategy.experimental_distribute_dataset``.

    Args:
        layout: the strategy's layout.
        input_context: this process's position among the processes that read.
        dataset: an iterable of global batches: `lockstep.data.Batches`, a Grain data set, a ``keras.utils.PyDataset``,
            a ``tf.data.Dataset``, a PyTorch ``DataLoader``, a list of batches, any other iterable, or a function that
            returns an iterable for each pass. A batch is a structure of arrays whose first dim is the rows.
        options: how the processes divide the data set.

    Raises:
        InvalidInputError: the argument is not such a data set, or the policy does not fit it.
    """
    chosen = InputOptions() if options is None else options
    _check_is_dataset(dataset)
    if isinstance(dataset, GlobalBatches):
        _check_own_policy(dataset, chosen.auto_shard_policy)
        read = read_shared(layout, dataset)
    else:
        if isinstance(dataset, DividedData):
            dataset, policy = dataset.divide(chosen.auto_shard_policy, input_context=input_context)
            each_its_own = policy is not AutoShardPolicy.DATA
        else:
            workers = input_context.num_input_pipelines
            policy = decide_policy(chosen.auto_shard_policy, num_files=None, num_workers=workers)
            each_its_own = policy is AutoShardPolicy.OFF and layout.num_processes > 1
        opened = passes_of(dataset)
        read = read_own(layout, opened) if each_its_own else read_whole(layout, opened)
    return DistributedDataset(layout, read, num_batches=_num_batches(dataset), options=chosen)


def distribute_from_function(
    layout: AbstractLayout,
    input_context: InputContext,
    dataset_fn: Callable[[InputContext], Any],
    options: InputOptions | None = None,
) -> DistributedDataset:
    """Divides batches that each process makes over the replicas: ``strategy.distribute_datasets_from_function``.

    Each process adds one batch for each of its replicas to a global batch, in the order of the processes.

    Args:
        layout: the strategy's layout.
        input_context: this process's position among the processes that read.
        dataset_fn: a function that is called once in each process. It returns a data set (see `distribute_dataset`)
            that yields batches for one replica, with this process's own rows.
        options: how many batches are read ahead.

    Raises:
        InvalidInputError: the function did not return such a data set.
    """
    chosen = InputOptions() if options is None else options
    dataset = dataset_fn(input_context)
    _check_is_dataset(dataset)
    num_local = input_context.num_replicas_in_sync // input_context.num_input_pipelines
    opened = passes_of(dataset)

    def open_joined() -> Iterator[Any]:
        return _join(opened(), num_local)

    num_batches = _num_batches(dataset)
    several = layout.num_processes > 1
    return DistributedDataset(
        layout,
        read_own(layout, open_joined) if several else read_whole(layout, open_joined),
        # Other processes may have more batches than this one.
        num_batches=None if num_batches is None or several else -(-num_batches // num_local),
        options=chosen,
    )


def distribute_values(layout: AbstractLayout, value_fn: Callable[[ValueContext], Any]) -> Any:
    """Creates one value for each replica: ``strategy.experimental_distribute_values_from_function``.

    Args:
        layout: the strategy's layout.
        value_fn: a function that is called for each replica of this process. It returns a pytree of arrays and
            numbers, with the same shapes for each replica.

    Returns:
        The pytree, with each leaf as `PerReplica`.

    Raises:
        InvalidInputError: the replicas' values have different structures or shapes.
    """
    count = layout.num_replicas
    sharding = NamedSharding(layout.data_mesh(count), PartitionSpec(BATCH_AXIS))
    placed = cast("dict[Any, Any]", sharding.addressable_devices_indices_map((count,)))
    replicas = sorted({int(index[0].indices(count)[0]) for index in placed.values()})
    values = {
        replica: value_fn(ValueContext(replica_id_in_sync_group=replica, num_replicas_in_sync=count))
        for replica in replicas
    }
    flat = {replica: [np.asarray(leaf) for leaf in jax.tree.leaves(value)] for replica, value in values.items()}
    kinds = {
        str((jax.tree.structure(value), [(leaf.shape, leaf.dtype.name) for leaf in flat[replica]]))
        for replica, value in values.items()
    }
    if len(kinds) > 1:
        raise InvalidInputError(
            "the replicas' values have different structures, shapes or dtypes",
            received=sorted(kinds),
            allowed="one structure, shape and dtype",
        )

    def stack(position: int) -> PerReplica:
        def rows(index: Any) -> np.ndarray:
            return np.stack([flat[replica][position] for replica in range(*index[0].indices(count))])

        shape = (count, *flat[replicas[0]][position].shape)
        return PerReplica(jax.make_array_from_callback(shape, sharding, rows))

    first = values[replicas[0]]
    return jax.tree.unflatten(jax.tree.structure(first), [stack(at) for at in range(len(flat[replicas[0]]))])


def _join(batches: Iterator[Any], num_together: int) -> Generator[Any]:
    """Yields `num_together` batches as one, fewer at the end."""
    while together := list(itertools.islice(batches, num_together)):
        yield keras.tree.map_structure(_concatenate, *together)


def _concatenate(*leaves: Any) -> Any:
    return None if leaves[0] is None else np.concatenate([np.atleast_1d(leaf) for leaf in leaves])


def _ahead(batches: Iterator[Any], *, num_ahead: int) -> Generator[Any]:
    """Yields each batch once the next `num_ahead` batches are on their way to the devices."""
    placed: deque[Any] = deque()
    for batch in batches:
        placed.append(batch)
        if len(placed) > num_ahead:
            yield placed.popleft()
    yield from placed


def _num_batches(dataset: Any) -> int | None:
    if isinstance(dataset, GlobalBatches | keras.utils.PyDataset):
        return dataset.num_batches
    try:
        found = len(dataset)
    except TypeError:  # the length is unknown
        return None
    return found if found < _ENDLESS else None


def _check_is_dataset(dataset: Any) -> None:
    is_batch = isinstance(dataset, tuple | dict | str | bytes) or hasattr(dataset, "__array__")
    is_distributed = isinstance(dataset, DistributedDataset | DistributedIterator)
    if is_batch or is_distributed or not (hasattr(dataset, "__iter__") or callable(dataset)):
        raise InvalidInputError(
            "this is not a data set of batches",
            received=f"{'a distributed one' if is_distributed else type(dataset).__name__}",
            allowed="lockstep.data.Batches, Grain's, PyDataset, tf.data, DataLoader, a list of batches, a function "
            "that returns an iterator",
            action="cut arrays into batches first: grain.MapDataset.source(rows).batch(size)" if is_batch else None,
        )


def _check_own_policy(dataset: GlobalBatches, policy: AutoShardPolicy) -> None:
    own = getattr(dataset, "policy", AutoShardPolicy.DATA)
    if policy not in (AutoShardPolicy.AUTO, own):
        raise InvalidInputError(
            "the data has another policy than the options of its distribution",
            received=f"{own.name}, distributed with {policy.name}",
            action=f"give Batches the policy {policy.name}, or leave it out of the options",
        )
