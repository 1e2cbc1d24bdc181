"""What every cluster engine can do."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from lockstep.clusters.machines.base import Provisioning
from lockstep.clusters.shell_relay import AbstractShell
from lockstep.jobs.running.orders import GangOrder, GangStatus
from lockstep.jobs.scheduling import NodeSpec, Resources


class AbstractCluster(abc.ABC):
    """A cluster engine: it places gangs, says how they are, and stops them.

    Gangs outlive the process that placed them: another process that opens the same cluster finds them by their ids.
    All methods may be called from any thread; none waits for a program.
    """

    @abc.abstractmethod
    def start(self) -> None:
        """Connects to the engine, bringing it up where this engine is one that Lockstep owns.

        Idempotent; blocks until the engine answers. After an engine was lost, calling it again brings a new one up.

        Raises:
            EngineError: the engine did not come up, or does not answer.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, str]:
        """Returns what a person may want to know of the engine, as short texts by name. Does not block."""

    @property
    @abc.abstractmethod
    def simulates_machines(self) -> bool:
        """Whether a machine type is but a name here: it reserves nothing, and nothing is owed for it."""

    @property
    @abc.abstractmethod
    def provisioning(self) -> Provisioning | None:
        """What there may be of nodes and where their machines come from; None where the nodes are those that there are.

        Where it is not None, `nodes` returns those that have joined, by their machines' names, and a replica goes to
        the machine that its order names.
        """

    @abc.abstractmethod
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        """Says whether virtual devices would stand in for these accelerators.

        Args:
            accelerator_type: the contract's name, such as ``NVIDIA_TESLA_V100``.
            count: how many one replica needs.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Returns the nodes that gangs are placed on, with what really is there to be reserved on each.

        Where no node has ``vcpus``, a machine type reserves nothing: how many jobs run at once is then the service's
        setting. The answer may change from call to call.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def in_use(self) -> Mapping[str, Resources] | None:
        """Returns what is taken of each node, by whomever, by the node's name; None where nobody but this service can.

        It may be a moment old.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def fence(self, generation: int, *, owner: str) -> None:
        """Tells the engine which generation of an owner's controllers it works for: an earlier one has been replaced.

        What is placed from now on for that owner with an earlier generation ends as stopped and starts nothing, whoever
        asks for it. Idempotent; an earlier generation than the last one that the engine was told of changes nothing,
        and neither does another owner's.

        Args:
            generation: the generation.
            owner: whose controllers, as in `GangOrder.owner`.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def place(self, order: GangOrder) -> None:
        """Asks for a gang. Idempotent by its id; returns before the gang is placed.

        One that finds no room within its ``place_within_s`` ends with `lockstep.jobs.running.orders.NO_ROOM`.

        Raises:
            EngineError: the engine does not answer; whether it took the order is unknown, and asking again is right.
        """

    @abc.abstractmethod
    def observe(self, gang_id: str) -> GangStatus | None:
        """Returns how a gang is; None if the engine does not know it (never placed, forgotten, or lost with its node).

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        """Gives a replica that waits for another machine one; it is launched there as soon as it can be.

        It waits where `observe` says that it is displaced, and with which machine: that one, or one that this method
        named and that was lost, too. Idempotent; returns before it is launched. Of a gang or a replica that is not
        there, or does not wait, nothing happens.

        Args:
            gang_id: the gang.
            replica: the replica's name.
            machine: its new machine, as in `ReplicaOrder.machine`.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def stop(self, gang_id: str) -> None:
        """Asks a gang to end: its programs get SIGTERM, and SIGKILL after their grace. Idempotent; does not wait.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def fetch_left(self, order: GangOrder) -> bool:
        """Brings what an ended gang's replicas could not say to their spool folders here, from where it is.

        Blocks for a part of it; to be called again until all is here. Of a gang that the engine does not know there is
        nothing.

        Returns:
            Whether all of it is here. Where the disk does not take it, it is not, and stays where it is; after an hour
            it is given up, and counts as here: the job would have its nodes for as long.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def forget(self, gang_id: str) -> None:
        """Gives back all that the engine holds for a gang, ending what still runs. Idempotent.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        """Returns a connection to a replica's runner, on whichever node it is. Blocks until it is there, bounded.

        Args:
            gang_id: the gang.
            replica: the replica's name.

        Raises:
            UnavailableError: the replica takes no shells: it is not there, its program does not run, or it was ordered
                without ``web_access``.
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnects. Gangs go on. Idempotent."""

    @abc.abstractmethod
    def shut_down(self) -> None:
        """Ends the engine with all that runs on it, where Lockstep owns it; otherwise just disconnects. Idempotent."""
