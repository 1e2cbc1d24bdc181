"""The base class of all strategies: devices, a layout of variables and batches over them, and the strategy's scope."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, final

from lockstep.errors import InvalidInputError
from lockstep.strategies import fitting
from lockstep.strategies.datasets import (
    DistributedDataset,
    InputOptions,
    ValueContext,
    distribute_dataset,
    distribute_from_function,
    distribute_values,
)
from lockstep.strategies.devices import Device
from lockstep.strategies.ground import AbstractGround, current_ground
from lockstep.strategies.input import InputContext
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.loops.cross_replica import gather_values, local_results, reduce_values
from lockstep.strategies.loops.pure_steps import CompiledStep, place_state
from lockstep.strategies.loops.replica import ReduceOp, active_replica_context
from lockstep.strategies.loops.running import run_on_replicas
from lockstep.strategies.mesh import AbstractLayout
from lockstep.topology import Topology
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage


class AbstractStrategy(AbstractGround):
    """Decides where parameters are placed, how gradients are summed and how parameters are updated.

    Build and compile models within `scope`. ``fit``, ``evaluate`` and ``predict`` may then be called anywhere, because
    a model remembers the strategy that it was compiled under. ``fit`` runs one global program whose batch is divided
    over the replicas, and gives the result that one device gives on the same global batch.

    A strategy belongs to the thread that created it, as Keras's current distribution does.

    Args:
        layout: the placement of variables and batches on the devices of all processes.
        topology: the members of the job, and which of them this process is.
        communication_options: how gradients and other values are sent between replicas.
        input_context: this process's position among the processes that read input. By default, these are the processes
            that train in step.
    """

    def __init__(
        self,
        layout: AbstractLayout,
        *,
        topology: Topology,
        communication_options: CommunicationOptions | None = None,
        input_context: InputContext | None = None,
    ) -> None:
        replace(Stage.STRATEGY)
        if layout.runs is not None:
            fitting.train_only_within(layout)
        self._topology = topology
        self._layout = layout
        self._communication_options = communication_options or CommunicationOptions()
        self._input_context = input_context

    @abstractmethod
    def describe(self) -> str:
        """Describes in a few words what the strategy runs on, for a log: "MirroredStrategy over 2 x cpu".

        Does not block, and may be called from any thread.
        """

    @property
    @final
    def layout(self) -> AbstractLayout:
        """The placement of variables and batches on the devices."""
        return self._layout

    @property
    @final
    def communication_options(self) -> CommunicationOptions:
        """How values are sent between replicas."""
        return self._communication_options

    @property
    @final
    def devices(self) -> tuple[Device, ...]:
        """The devices that compute, in all processes."""
        return self._layout.devices

    @property
    @final
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that share a global batch, over all processes.

        Within a replica's step, the number of replicas that this step's batch is divided over. It is smaller if the
        batch is uneven.
        """
        context = active_replica_context()
        if context is not None and context.strategy is self:
            return context.num_replicas_in_sync
        return self._layout.num_replicas

    @property
    @final
    def topology(self) -> Topology:
        """The members of the job, and which of them this process is."""
        return self._topology

    @property
    def cluster_resolver(self) -> Topology | None:
        """The topology if several processes train in step, else None; the name is from ``tf.distribute``.

        `MultiWorkerMirroredStrategy` always returns a topology. In a job of one process, the topology's
        `Topology.task_type` is None instead.
        """
        return self._topology if self._layout.num_processes > 1 else None

    @property
    @final
    def is_chief(self) -> bool:
        """Whether this process writes everything that is written once: checkpoints, models, summaries."""
        return self._topology.is_chief if self._input_context is not None else self.input_context.input_pipeline_id == 0

    @property
    @final
    def input_context(self) -> InputContext:
        """This process's position among the processes that read input."""
        return self._input_context or InputContext(
            num_input_pipelines=self._layout.num_processes,
            input_pipeline_id=self._topology.process_id if self._layout.num_processes > 1 else 0,
            num_replicas_in_sync=self.num_replicas_in_sync,
        )

    @final
    @contextmanager
    def scope(self) -> Generator[Self]:
        """Makes the strategy current within a ``with`` block.

        Variables that are created in the block are placed on the strategy's devices. Models that are compiled in the
        block remember the strategy.

        Raises:
            InvalidInputError: another strategy is current.
        """
        current = fitting.current_layout()
        if current is not None and current is not self._layout:
            raise InvalidInputError(
                "a strategy's scope was entered within another one's",
                received=f"{self._layout.name} within {current.name}",
                allowed="one strategy at a time",
                action="leave the first scope first",
            )
        with self._layout.scope(), current_ground(self):
            yield self

    @final
    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Runs a step on each replica, with its part of the batch, as ``tf.distribute.Strategy.run`` does.

        Each replica computes its own batch statistics, dropout masks and losses. An optimizer's ``apply_gradients`` (or
        ``apply``) first sums the gradients over the replicas. Metrics are summed over the replicas, and moving
        statistics are averaged. Call it within a `lockstep.function` if possible. Outside one, the step is compiled by
        itself, once for each function object.

        A batch of b rows on n replicas is divided over gcd(b, n) of them. The other replicas compute copies that are
        not counted, so sums over replicas stay exact.

        Args:
            fn: the step. It takes one replica's arguments, and returns a pytree of arrays.
            args: the positional arguments of the step. Each replica receives its own part of `PerReplica` values, and
                every other value unchanged.
            kwargs: the keyword arguments of the step, divided in the same way.

        Returns:
            The result of the step, with each array as `PerReplica`.

        Raises:
            InvalidInputError: values of different batches are mixed, or variables are not on the strategy's devices.
        """
        return run_on_replicas(self, fn, args, dict(kwargs or {}))

    @final
    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: int | None = None) -> Any:
        """Reduces the replicas' values to one value that every process has.

        Args:
            reduce_op: SUM or MEAN.
            value: a pytree with `PerReplica` values.
            axis: a dim of each replica's value that is reduced too; None for no dim.

        Returns:
            The same pytree, with reduced arrays.

        Raises:
            InvalidInputError: there is no such reduction or dim, or the sum of a value that all replicas share was
                requested.
        """
        return reduce_values(self._layout, reduce_op, value, axis)

    @final
    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates the replicas' values along a dim, in the order of the replicas.

        The rows of a batch are in their original order again.

        Args:
            value: a pytree with `PerReplica` values.
            axis: the dim.

        Returns:
            The same pytree of arrays. Every process has each array as a whole.

        Raises:
            InvalidInputError: the values have no such dim.
        """
        return gather_values(self._layout, value, axis)

    @final
    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns the values of this process's replicas, or a tuple of the value itself if all replicas share it.

        Args:
            value: a pytree with `PerReplica` values.
        """
        return local_results(value)

    @final
    def experimental_distribute_dataset(self, dataset: Any, options: InputOptions | None = None) -> DistributedDataset:
        """Divides a data set's global batches over the replicas.

        Args:
            dataset: an iterable of global batches: a Grain data set, `lockstep.data.Batches`, a
                ``keras.utils.PyDataset``, a generator, or any other iterable. A batch is a structure of arrays whose
                first dim is the rows, with any number of rows. In a job of several processes, each process yields the
                same batches and keeps its own rows, unless the options say otherwise. `lockstep.data.Batches` reads
                only the process's own rows.
            options: how the processes divide the data set, and how many batches are read ahead.

        Returns:
            An iterable of the batches, with `PerReplica` in place of the arrays. It can be iterated again if the data
            set can, and ``fit`` takes it.

        Raises:
            InvalidInputError: the argument is not a data set, or the options do not fit it.
        """
        return distribute_dataset(self._layout, self.input_context, dataset, options)

    @final
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Makes one distributed data set from the data sets that each process creates for itself.

        Args:
            dataset_fn: a function that takes this process's `InputContext` and returns a data set of the process's own
                rows, in batches for one replica: ``context.get_per_replica_batch_size(global_batch_size)`` rows.
            options: how many batches are read ahead.

        Returns:
            An iterable of global batches, each made of one batch for every replica, with `PerReplica` in place of the
            arrays. If the data of some processes ends earlier, the other processes continue alone.

        Raises:
            InvalidInputError: the function did not return a data set.
        """
        return distribute_from_function(self._layout, self.input_context, dataset_fn, options)

    @final
    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Creates one value for each replica.

        Args:
            value_fn: a function that takes a replica's `ValueContext` and returns the replica's value: a pytree of
                arrays, with the same shapes for every replica.

        Returns:
            The pytree, with `PerReplica` in place of the arrays.
        """
        return distribute_values(self._layout, value_fn)

    @final
    def replicate(self, state: Any) -> Any:
        """Places a pytree where the strategy keeps state: a copy on every device, divided over them, or in host memory.

        Args:
            state: a pytree of arrays and numbers, the same in every process.

        Returns:
            The same pytree of placed arrays, for a step that `compile` returned.
        """
        return place_state(self._layout, state)

    @final
    def shard_batch(self, batch: Any) -> Any:
        """Divides the rows of a global batch over the devices. Any number of rows is allowed.

        Args:
            batch: a pytree of arrays whose first dim is the rows; the same whole batch in every process.

        Returns:
            The same pytree of placed arrays.
        """
        return self._layout.place(batch)

    @final
    def compile(
        self,
        step: Callable[[Any, Any], Any],
        *,
        update: Callable[[Any, Any], Any] | None = None,
        donate_state: bool = True,
    ) -> CompiledStep:
        """Compiles a pure training step over pytrees as one program over the strategy's devices.

        Args:
            step: a function of the state and the global batch. It returns the new state, or a tuple of the new state
                and outputs. With ``update``, it returns a tuple of gradients and outputs.
            update: a function of the state and the gradients that returns the new state. This part of the step runs
                where the state is kept. `CentralStorageStrategy` needs it.
            donate_state: whether the buffers of the old state are reused for the new state. The old state cannot be
                used afterwards.

        Returns:
            The compiled step. It takes state and batch.

        Raises:
            InvalidInputError: the strategy needs ``update``; or, when the step is called, it does not return a state.
        """
        return CompiledStep(self._layout, step, update=update, donate_state=donate_state)
