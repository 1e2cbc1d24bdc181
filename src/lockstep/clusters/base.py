"""The interface of all cluster engines."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from lockstep.clusters.machines.base import Provisioning
from lockstep.clusters.shell_relay import AbstractShell
from lockstep.errors import UnavailableError
from lockstep.heartbeat import ProfileRequest
from lockstep.jobs.running.orders import GangOrder, GangStatus
from lockstep.jobs.scheduling import NodeSpec, Resources


class AbstractCluster(abc.ABC):
    """A cluster engine: it places gangs, reports their status, and stops them.

    Gangs outlive the process that placed them: another process that opens the same cluster finds them by their ids.
    All methods may be called from any thread. No method waits for a program.
    """

    @abc.abstractmethod
    def start(self) -> None:
        """Connects to the engine, and starts the engine first if Lockstep owns it.

        Idempotent. Blocks until the engine answers. If the engine was lost, another call starts a new one.

        Raises:
            EngineError: the engine did not start, or does not answer.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, str]:
        """Returns information about the engine for a person to read, as short texts by name. Does not block."""

    @property
    @abc.abstractmethod
    def simulates_machines(self) -> bool:
        """Whether machines are simulated: a machine type is only a name, reserves nothing and costs nothing."""

    @property
    @abc.abstractmethod
    def provisioning(self) -> Provisioning | None:
        """The nodes that the cluster may have, and their provider; None if the engine's nodes are fixed.

        If it is not None, `nodes` returns the nodes that have joined, by their machines' names, and a replica is placed
        on the machine that its order names.
        """

    @abc.abstractmethod
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        """Returns whether virtual devices would stand in for these accelerators.

        Args:
            accelerator_type: the contract's name of the accelerator, such as ``NVIDIA_TESLA_V100``.
            count: the number of accelerators that one replica needs.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Returns the nodes that gangs are placed on, with the resources that can be reserved on each.

        If no node has ``vcpus``, a machine type reserves nothing, and a setting of the service limits how many jobs run
        at once. The result may change from call to call.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def in_use(self) -> Mapping[str, Resources] | None:
        """Returns the resources in use on each node, by node name; None if only this service can use the nodes.

        The resources include those that other users of the cluster hold. The values may be a moment old.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def fence(self, generation: int, *, owner: str) -> None:
        """Sets the generation of an owner's controllers that the engine accepts orders from; it rejects earlier ones.

        A gang of that owner that is placed from now on with an earlier generation ends as stopped and starts nothing.
        Idempotent. A generation lower than the one that the engine already has changes nothing, and other owners are
        not affected.

        Args:
            generation: the generation.
            owner: the owner of the controllers, as in `GangOrder.owner`.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def place(self, order: GangOrder) -> None:
        """Requests a gang. Idempotent by the gang's id; returns before the gang is placed.

        A gang that finds no room within its ``place_within_s`` ends with `lockstep.jobs.running.orders.NO_ROOM`.

        Raises:
            EngineError: the engine does not answer. It may or may not have received the order; retry the call.
        """

    @abc.abstractmethod
    def observe(self, gang_id: str) -> GangStatus | None:
        """Returns a gang's status; None if the engine does not have it: never placed, forgotten, or lost with its node.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        """Assigns another machine to a replica that has lost its own; the replica is launched there once possible.

        A replica waits for another machine if it is in ``displaced`` of the status that `observe` returns.
        ``displaced`` names the machine that it lost: its first one, or one that an earlier call assigned and that was
        lost too. Idempotent; returns before the replica is launched. Does nothing if there is no such gang or replica,
        or if the replica is not waiting.

        Args:
            gang_id: the gang.
            replica: the replica's name.
            machine: its new machine, as in `ReplicaOrder.machine`.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def stop(self, gang_id: str) -> None:
        """Requests the end of a gang: its programs get SIGTERM, then SIGKILL after the grace period.

        Idempotent; does not wait.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def collect_leftovers(self, order: GangOrder) -> bool:
        """Copies an ended gang's undelivered logs and metrics to its replicas' spool folders on this machine.

        Each call blocks while it copies a part; call it again until it returns True. A gang that the engine does not
        have has left nothing.

        Returns:
            Whether everything has been copied. False while this machine's disk refuses it: the segments then stay on
            their node. After an hour they are given up and the result is True, because the job would keep its nodes
            until then.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def forget(self, gang_id: str) -> None:
        """Releases all that the engine holds for a gang, and ends what still runs. Idempotent.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def request_profile(self, gang_id: str, *, replica: str, request: ProfileRequest) -> None:
        """Passes a request for a profile to a replica's runner, on whichever node it runs.

        Returns when the runner has it. The replica's status reports about the profile from then on.

        Args:
            gang_id: the gang.
            replica: the replica's name.
            request: the request.

        Raises:
            UnavailableError: there is no such replica, or its runner is not running.
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        """Returns a connection to a replica's runner, on whichever node it runs.

        Blocks until connected, with a timeout.

        Args:
            gang_id: the gang.
            replica: the replica's name.

        Raises:
            UnavailableError: the replica accepts no shells: it does not exist, its program is not running, or it was
                ordered without ``web_access``.
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnects from the engine. Gangs keep running. Idempotent."""

    @abc.abstractmethod
    def shut_down(self) -> None:
        """Ends the engine and all that runs on it if Lockstep owns it; otherwise only disconnects. Idempotent."""


def not_running(replica: str) -> UnavailableError:
    """Returns the error of a request to a replica whose runner is not running.

    Args:
        replica: the replica's name.
    """
    return UnavailableError(f"replica {replica} is not running now", action="wait until its program is running")
