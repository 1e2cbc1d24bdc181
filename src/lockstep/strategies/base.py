"""What every strategy is: devices, a layout of variables and batches over them, and the scope that makes it current."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, final

from lockstep.errors import InvalidInputError
from lockstep.strategies import fitting, xla_cpu
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
    """Decides where parameters live, how gradients are accumulated and how parameters are updated.

    Models are built and compiled within `scope`; ``fit``, ``evaluate`` and ``predict`` may then be called anywhere,
    since a model remembers the strategy that it was compiled under. ``fit`` runs one global program whose batch is
    divided over the replicas: it gives what one device gives on the same global batch.

    A strategy belongs to the thread that made it, as Keras's current distribution does.

    Args:
        layout: where variables and batches lie, over the devices of all processes.
        topology: who is in the job.
        communication_options: how gradients and other values travel between replicas.
        input_context: this process's place among those that read input; by default those that train in step.
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
        if layout.devices[0].platform == "cpu":
            xla_cpu.keep_freed_memory()
        if layout.runs is not None:
            fitting.train_only_within(layout)
        self._topology = topology
        self._layout = layout
        self._communication_options = communication_options or CommunicationOptions()
        self._input_context = input_context

    @abstractmethod
    def describe(self) -> str:
        """Says in a few words what the strategy runs on, for a log: "MirroredStrategy over 2 x cpu".

        Does not block, and may be called from any thread.
        """

    @property
    @final
    def layout(self) -> AbstractLayout:
        """Where variables and batches lie."""
        return self._layout

    @property
    @final
    def communication_options(self) -> CommunicationOptions:
        """How values travel between replicas."""
        return self._communication_options

    @property
    @final
    def devices(self) -> tuple[Device, ...]:
        """The devices of all processes that compute."""
        return self._layout.devices

    @property
    @final
    def num_replicas_in_sync(self) -> int:
        """How many replicas share a global batch, over all processes.

        Within a replica's step: over how many replicas that step's batch is divided; fewer where it is uneven.
        """
        context = active_replica_context()
        if context is not None and context.strategy is self:
            return context.num_replicas_in_sync
        return self._layout.num_replicas

    @property
    @final
    def topology(self) -> Topology:
        """Who is in the job, and which of them this process is."""
        return self._topology

    @property
    def cluster_resolver(self) -> Topology | None:
        """The topology where several processes train in step, by the name of ``tf.distribute``; None in one process.

        Of `MultiWorkerMirroredStrategy` it is never None: in one process its `Topology.task_type` is.
        """
        return self._topology if self._layout.num_processes > 1 else None

    @property
    @final
    def is_chief(self) -> bool:
        """Whether this process writes what is written once: checkpoints, models, summaries."""
        return self._topology.is_chief if self._input_context is not None else self.input_context.input_pipeline_id == 0

    @property
    @final
    def input_context(self) -> InputContext:
        """This process's place among those that read input."""
        return self._input_context or InputContext(
            num_input_pipelines=self._layout.num_processes,
            input_pipeline_id=self._topology.process_id if self._layout.num_processes > 1 else 0,
            num_replicas_in_sync=self.num_replicas_in_sync,
        )

    @final
    @contextmanager
    def scope(self) -> Generator[Self]:
        """Makes the strategy current: variables made within lie on its devices, models compiled within remember it.

        Raises:
            InvalidInputError: another strategy is current.
        """
        current = fitting.current_layout()
        if current is not None and current is not self._layout:
            raise InvalidInputError(
                "a strategy's scope was entered within another one's",
                received=f"{self._layout.name} within {current.name}",
                allowed="one strategy at a time",
                action="leave the first scope before",
            )
        with self._layout.scope(), current_ground(self):
            yield self

    @final
    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Runs a step on each replica, with its own share of the batch, as ``tf.distribute.Strategy.run`` does.

        All that the step computes is its replica's own: batch statistics, dropout masks, losses. An optimizer's
        ``apply_gradients`` (or ``apply``) sums the gradients over the replicas first. Metrics add up over the replicas,
        and moving statistics are averaged. Best called within a `lockstep.function`; outside one the step is compiled
        by itself, once for each function object.

        A batch that does not divide over all replicas is divided over as many as divide it; the others compute copies
        that are not counted, so that sums over replicas stay exact.

        Args:
            fn: the step; it takes one replica's arguments, and returns a pytree of arrays.
            args: its arguments. Each replica gets its own part of `PerReplica` values, and all else as it is.
            kwargs: the same by name.

        Returns:
            What the step returned, each array as `PerReplica`.

        Raises:
            InvalidInputError: values of different batches are mixed, or variables lie outside the strategy's devices.
        """
        return run_on_replicas(self, fn, args, dict(kwargs or {}))

    @final
    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: int | None = None) -> Any:
        """Reduces replicas' values to one that every process has.

        Args:
            reduce_op: SUM or MEAN.
            value: a pytree with `PerReplica` values.
            axis: a dim of each replica's value to reduce over as well; None for none.

        Returns:
            The same pytree of arrays.

        Raises:
            InvalidInputError: there is no such reduction or dim, or a sum is asked of a value that all replicas share.
        """
        return reduce_values(self._layout, reduce_op, value, axis)

    @final
    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates replicas' values along a dim, in the replicas' order: rows of a batch come out in theirs.

        Args:
            value: a pytree with `PerReplica` values.
            axis: the dim.

        Returns:
            The same pytree of arrays, the whole of each in every process.

        Raises:
            InvalidInputError: the values have no such dim.
        """
        return gather_values(self._layout, value, axis)

    @final
    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns the values of this process's replicas, or a tuple of the value itself where all share it.

        Args:
            value: a pytree with `PerReplica` values.
        """
        return local_results(value)

    @final
    def experimental_distribute_dataset(self, dataset: Any, options: InputOptions | None = None) -> DistributedDataset:
        """Divides a data set's global batches over the replicas.

        Args:
            dataset: yields global batches, structures of arrays with rows first, of any number of rows: a Grain data
                set, `lockstep.data.Batches`, a ``keras.utils.PyDataset``, a generator, or any other iterable. In a job
                of several processes each of them yields the same batches and keeps its rows, unless the options say
                otherwise; `lockstep.data.Batches` reads a process's rows alone.
            options: how the data set is shared among processes, and how far it is read ahead.

        Returns:
            An iterable of the batches, with `PerReplica` in the arrays' places. It can be iterated again where the data
            set can, and given to ``fit``.

        Raises:
            InvalidInputError: it is no data set, or the options do not fit it.
        """
        return distribute_dataset(self._layout, self.input_context, dataset, options)

    @final
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Makes one data set of those that each process makes for itself.

        Args:
            dataset_fn: takes this process's `InputContext`, and returns a data set of its own rows, in batches of a
                replica's size: ``context.get_per_replica_batch_size(global_batch_size)``.
            options: how far it is read ahead.

        Returns:
            An iterable of global batches, each of one batch of every replica, with `PerReplica` in the arrays' places.
            Where the data of some end earlier, the others go on alone.

        Raises:
            InvalidInputError: the function returned no data set.
        """
        return distribute_from_function(self._layout, self.input_context, dataset_fn, options)

    @final
    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Makes a value for each replica.

        Args:
            value_fn: takes a replica's `ValueContext`, and returns its value: a pytree of arrays of the same shapes for
                every replica.

        Returns:
            The pytree, with `PerReplica` in the arrays' places.
        """
        return distribute_values(self._layout, value_fn)

    @final
    def replicate(self, state: Any) -> Any:
        """Puts a pytree where the strategy keeps state: a copy on every device, shards, or host memory.

        Args:
            state: a pytree of arrays and numbers, the same in every process.

        Returns:
            The same pytree of arrays, for a step that `compile` made.
        """
        return place_state(self._layout, state)

    @final
    def shard_batch(self, batch: Any) -> Any:
        """Divides a global batch over the devices by its rows; any number of rows will do.

        Args:
            batch: a pytree of arrays, rows first, the same whole batch in every process.

        Returns:
            The same pytree of arrays.
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
            step: takes state and global batch, and returns the new state, or a tuple of it and outputs. With
                ``update``, it returns a tuple of gradients and outputs.
            update: takes state and gradients, and returns the new state: the part of the step that runs where the
                state is kept. `CentralStorageStrategy` needs it.
            donate_state: whether the state's buffers are reused for the new one; the old state is gone then.

        Returns:
            The compiled step; it takes state and batch.

        Raises:
            InvalidInputError: the strategy needs ``update``; when called, the step returns no state.
        """
        return CompiledStep(self._layout, step, update=update, donate_state=donate_state)
