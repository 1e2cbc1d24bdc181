"""Defines what a queued job needs from the nodes, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

Resources = Mapping[str, int]
"""Amounts by name: vCPUs, MiB of memory, accelerators by type. They are integers, so that sums are exact."""

Order = tuple[int, float, str]
"""The sort key of a job in the queue: smaller keys start earlier."""


@final
@dataclass(frozen=True, kw_only=True)
class Demand:
    """The need of some replicas of a gang that need the same from one node each.

    Attributes:
        name: a description of the machine, such as "n1-standard-8 + 2 x NVIDIA_TESLA_V100".
        count: the number of replicas.
        resources: the amounts that each replica takes from its node, by name; nothing of a resource without an entry.
        node_types: the allowed node types; if empty, any node with enough room.
    """

    name: str
    count: int = 1
    resources: tuple[tuple[str, int], ...] = ()
    node_types: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job in the queue.

    Attributes:
        uid: the service's own id of the job.
        name: the name that the user gave the job.
        project: the project that owns the job.
        priority: the job's priority, 0 to 1000; jobs with a higher priority start earlier.
        create_time_s: the creation time, in seconds since 1970 UTC.
        demands: the demands of the gang, which is placed as a whole or not at all.
        hold_s: the maximum time for which the job may hold its machines, in seconds: the limit of its preparation, its
            ``maxRunningTime``, and the time that its end may take. Promises to other jobs rely on it.
        accelerators: the number of the gang's accelerators by type, which count against the project's quota.
    """

    uid: str
    name: str
    project: str
    priority: int = 0
    create_time_s: float
    demands: tuple[Demand, ...]
    hold_s: float
    accelerators: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def num_machines(self) -> int:
        """The number of replicas of the gang; for a quota, each one counts as a machine."""
        return sum(demand.count for demand in self.demands)

    @property
    def order(self) -> Order:
        """The sort key in the queue: higher priority first, then first come, first served; the uid decides ties."""
        return (-self.priority, self.create_time_s, self.uid)


@final
@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A node that exists, or that can be started.

    Attributes:
        name: the name of the node, unique among all nodes.
        node_type: the node's type, such as the name of a machine type.
        resources: the total resources of the node.
        is_up: whether the node is running; other nodes are started when a gang is placed on them.
    """

    name: str
    node_type: str
    resources: Resources
    is_up: bool = True
