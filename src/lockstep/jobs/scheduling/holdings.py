"""Tracks the machines that running jobs hold, and when they release them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from sortedcontainers import SortedList

from lockstep.jobs.scheduling.demands import QueuedJob
from lockstep.jobs.scheduling.nodes import Allocation, Nodes
from lockstep.jobs.scheduling.promises import Release

OVERDUE_S: Final = 60.0
"""The expected remaining time, in seconds, of a job that holds machines beyond its latest end."""


@final
@dataclass(frozen=True, kw_only=True)
class Holding:
    """A running job and the machines that it holds.

    Attributes:
        job: the job that holds them.
        allocations: the job's allocations, including those on absent nodes.
        until_s: the latest time when they are released, in seconds since 1970 UTC.
        types: the types of the nodes that are present.
    """

    job: QueuedJob
    allocations: tuple[Allocation, ...]
    until_s: float
    types: frozenset[str] = frozenset()


@final
class Holdings:
    """The running jobs and the machines that they hold.

    Args:
        nodes: the present nodes; allocations are taken from them and released to them here.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._jobs: dict[str, Holding] = {}
        self._ends: dict[str, SortedList[tuple[float, str]]] = {}
        self._absent: dict[str, dict[str, None]] = {}  # absent nodes, and the jobs with allocations there

    def __contains__(self, uid: str) -> bool:
        return uid in self._jobs

    @property
    def uids(self) -> Collection[str]:
        """The uids of the jobs."""
        return self._jobs.keys()

    def add(self, job: QueuedJob, *, allocations: tuple[Allocation, ...], until_s: float) -> None:
        """Adds a job. Its allocations on present nodes must have been taken already."""
        present = [allocation.node for allocation in allocations if allocation.node in self._nodes]
        holding = self._jobs[job.uid] = Holding(job=job, allocations=allocations, until_s=until_s)
        self._set_types(holding, frozenset(self._nodes[name].spec.node_type for name in present))
        for allocation in allocations:
            if allocation.node not in self._nodes:
                self._absent.setdefault(allocation.node, {})[job.uid] = None

    def remove(self, uid: str) -> Holding:
        """Removes a job, and releases its allocations."""
        holding = self._jobs.pop(uid)
        for node_type in holding.types:
            self._ends[node_type].remove((holding.until_s, uid))
        self._nodes.release(holding.allocations)
        for name in {allocation.node for allocation in holding.allocations if allocation.node not in self._nodes}:
            holders = self._absent[name]
            del holders[uid]
            if not holders:
                del self._absent[name]
        return holding

    def add_node(self, name: str, *, node_type: str) -> None:
        """Takes from a node that is present again what jobs still hold of it."""
        for uid in self._absent.pop(name, {}):
            holding = self._jobs[uid]
            self._nodes.take(allocation for allocation in holding.allocations if allocation.node == name)
            self._set_types(holding, holding.types | {node_type})

    def remove_node(self, name: str, *, node_type: str) -> None:
        """Records which jobs hold a part of a node that is no longer present."""
        for _, uid in self._ends.get(node_type, ()):
            if any(allocation.node == name for allocation in self._jobs[uid].allocations):
                self._absent.setdefault(name, {})[uid] = None

    def releases(self, types: Iterable[str], *, now_s: float) -> Iterator[Release]:
        """Yields what running jobs release on nodes of the given types, the earliest first."""
        last = ""
        for until_s, uid in heapq.merge(*(self._ends.get(node_type, ()) for node_type in sorted(types))):
            if uid != last:  # a job on nodes of several types appears several times in a row
                last = uid
                yield Release(until_s if until_s > now_s else now_s + OVERDUE_S, self._jobs[uid].allocations)

    def _set_types(self, holding: Holding, types: frozenset[str]) -> None:
        for node_type in types - holding.types:
            self._ends.setdefault(node_type, SortedList()).add((holding.until_s, holding.job.uid))
        self._jobs[holding.job.uid] = replace(holding, types=types)
