"""What a queued job needs of the machines, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

Resources = Mapping[str, int]
"""Amounts by name: vCPUs, MiB of memory, accelerators by their type. Whole numbers, so that sums are exact."""

Order = tuple[int, float, str]
"""Where a job stands in the queue: what sorts first starts first."""


@final
@dataclass(frozen=True, kw_only=True)
class Demand:
    """Some replicas of a gang that need the same of a node.

    Attributes:
        name: the machine in words, such as "n1-standard-8 + 2 x NVIDIA_TESLA_V100".
        count: how many replicas.
        resources: what each takes of the node that it is on, by name; without an entry, nothing.
        node_types: nodes of these types alone; none for any node that has the room.
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
        uid: the service's own identifier of it.
        name: what people call it.
        project: the project that it belongs to.
        priority: 0 to 1000; a bigger number starts earlier.
        create_time_s: when it was created, seconds since 1970 UTC.
        demands: what its gang needs; all of it is placed together or nothing.
        hold_s: for how long it may hold its machines at the most: the bound of its preparation, its
            ``maxRunningTime``, and what its end may take. Promises to others rest on it.
        accelerators: how many accelerators the gang has, by type; they count against its project's quota.
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
        """How many replicas its gang has, each on a machine of its own as far as a quota is concerned."""
        return sum(demand.count for demand in self.demands)

    @property
    def order(self) -> Order:
        """Its place in the queue: higher priority first, then first come first served; the uid settles ties."""
        return (-self.priority, self.create_time_s, self.uid)


@final
@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A node that there is, or that may be had.

    Attributes:
        name: names it among all nodes.
        node_type: its type, such as a machine type's name.
        resources: all that it has.
        is_up: whether it is there already; others are brought up when a gang is placed on them.
    """

    name: str
    node_type: str
    resources: Resources
    is_up: bool = True
