"""The addresses of the cluster's processes, and how this process connects to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import ConfigError, counted
from lockstep.parameter_server.links import Link, Listener
from lockstep.parameter_server.servers import Servers
from lockstep.topology import CHIEF_ROLES, Topology

SILENCE_S: Final = 10.0
"""The time without any message after which a process counts as lost, in seconds. A killed process is noticed within one
second.
"""
START_WITHIN_S: Final = 600.0
"""How long processes wait for each other to start, in seconds: machines do not all start at the same time."""


@final
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes that train together.

    Attributes:
        topology: the processes with their addresses, and which of them this process is.
        token: the secret that only the processes of this cluster know.
        silence_s: the time without any message after which a process counts as lost, in seconds.
        start_within_s: how long to wait for a process to start, in seconds.
    """

    topology: Topology
    token: bytes
    silence_s: float = SILENCE_S
    start_within_s: float = START_WITHIN_S

    @property
    def process_name(self) -> str:
        """The name of this process in messages, such as "worker 1"."""
        return f"{self.topology.task.role} {self.topology.task.index}"

    @property
    def num_servers(self) -> int:
        """The number of parameter servers."""
        return len(self.topology.cluster["ps"])

    @property
    def num_workers(self) -> int:
        """The number of workers that the cluster is to have."""
        return len(self.topology.cluster["worker"])

    @property
    def chief_role(self) -> str:
        """The coordinator's role: "chief" or "master"."""
        return next(role for role in CHIEF_ROLES if role in self.topology.cluster)

    def listen(self) -> Listener:
        """Returns a listener at this process's own address.

        Raises:
            EngineError: the address is in use, or does not belong to this machine.
        """
        address = self.topology.cluster[self.topology.task.role][self.topology.task.index]
        return Listener(address, name=self.process_name, token=self.token, silence_s=self.silence_s)

    def reach_chief(self) -> Link:
        """Connects to the coordinator.

        Raises:
            UnavailableError: the coordinator does not start in time, or has another token.
        """
        return self._link(self.chief_role, 0)

    def reach_servers(self, *, within_s: float | None = None) -> Servers:
        """Connects to all servers.

        Args:
            within_s: how long to wait for each server, in seconds; None for `start_within_s`.

        Raises:
            UnavailableError: a server does not start in time, or has another token.
        """
        links: list[Link] = []
        try:
            for index in range(self.num_servers):
                links.append(self.reach_server(index, within_s=within_s))
        except BaseException:
            for link in links:
                link.close()
            raise
        return Servers(links)

    def reach_server(self, index: int, *, within_s: float | None = None) -> Link:
        """Connects to one server.

        Args:
            index: the index of the server.
            within_s: how long to wait for the server, in seconds; None for `start_within_s`.

        Raises:
            UnavailableError: the server does not start in time, or has another token.
        """
        return self._link("ps", index, within_s=within_s)

    def _link(self, role: str, index: int, *, within_s: float | None = None) -> Link:
        return Link(
            self.topology.cluster[role][index],
            peer_name=f"{role} {index}",
            token=self.token,
            name=self.process_name,
            silence_s=self.silence_s,
            connect_s=self.start_within_s if within_s is None else min(within_s, self.start_within_s),
        )


def check_cluster(topology: Topology) -> None:
    """Checks that a cluster has one chief, and at least one worker and one parameter server.

    Raises:
        ConfigError: a role is missing, or there are several chiefs.
    """
    cluster = topology.cluster
    chiefs = [role for role in CHIEF_ROLES if role in cluster]
    missing = [*([] if chiefs else ["chief"]), *(role for role in ("worker", "ps") if not cluster.get(role))]
    if missing:
        found = ", ".join(counted(len(addresses), role) for role, addresses in cluster.items()) or "no cluster"
        raise ConfigError(
            f"ParameterServerStrategy has no {missing[0]} in its cluster",
            received=found,
            allowed="a chief (or master), one worker or more, one ps or more; and an evaluator",
            action="name them in TF_CONFIG, or give a job workerCount and parameterServerCount",
        )
    if len(cluster[chiefs[0]]) != 1:
        raise ConfigError("a cluster with parameter servers has one chief", received=len(cluster[chiefs[0]]))
