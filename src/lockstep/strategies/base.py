"""What every strategy is: devices, a layout of variables and batches over them, and the scope that makes it current."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from typing import Self, final

from lockstep.errors import InvalidInputError
from lockstep.strategies import fitting, xla_cpu
from lockstep.strategies.devices import Device
from lockstep.strategies.input import InputContext
from lockstep.strategies.mesh import AbstractLayout
from lockstep.topology import Topology


class AbstractStrategy(ABC):
    """Decides where parameters live, how gradients are accumulated and how parameters are updated.

    Models are built and compiled within `scope`; ``fit``, ``evaluate`` and ``predict`` may then be called anywhere,
    since a model remembers the strategy that it was compiled under. ``fit`` runs one global program whose batch is
    divided over the replicas: it gives what one device gives on the same global batch.

    A strategy belongs to the thread that made it, as Keras's current distribution does.

    Args:
        layout: where variables and batches lie, over the devices of all processes.
        topology: who is in the job.
    """

    def __init__(self, layout: AbstractLayout, *, topology: Topology) -> None:
        fitting.install()
        if layout.devices[0].platform == "cpu":
            xla_cpu.keep_freed_memory()
        self._topology = topology
        self._layout = layout

    @abstractmethod
    def describe(self) -> str:
        """Says in a few words what the strategy runs on, for a log: "MirroredStrategy over 2 x cpu".

        Does not block, and may be called from any thread.
        """

    @property
    @final
    def devices(self) -> tuple[Device, ...]:
        """The devices of all processes that compute."""
        return self._layout.devices

    @property
    @final
    def num_replicas_in_sync(self) -> int:
        """How many replicas share a global batch, over all processes."""
        return self._layout.num_replicas

    @property
    @final
    def topology(self) -> Topology:
        """Who is in the job, and which of them this process is."""
        return self._topology

    @property
    @final
    def cluster_resolver(self) -> Topology | None:
        """The topology where several processes train in step, by the name of ``tf.distribute``; None in one process."""
        return self._topology if self._layout.num_processes > 1 else None

    @property
    @final
    def is_chief(self) -> bool:
        """Whether this process writes what is written once: checkpoints, models, summaries."""
        return self.input_context.input_pipeline_id == 0

    @property
    @final
    def input_context(self) -> InputContext:
        """This process's place among those that read input."""
        return InputContext(
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
        with self._layout.scope():
            yield self
