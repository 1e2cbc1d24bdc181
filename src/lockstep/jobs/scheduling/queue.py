"""Keeps the queued jobs, ordered by their place in the queue and grouped by what they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import final

from sortedcontainers import SortedList

from lockstep.jobs.scheduling.demands import Demand, Order, QueuedJob
from lockstep.jobs.scheduling.promises import PlacedDemand
from lockstep.jobs.scheduling.quotas import Quotas

GroupKey = tuple[str, tuple[tuple[str, int], ...], float]
"""The key of a group of equal jobs: project and accelerators (both empty without a quota), and `QueuedJob.hold_s`."""


@final
@dataclass(kw_only=True, slots=True, eq=False)
class Shape:
    """All queued jobs that need the same from the nodes.

    Attributes:
        needs: what each of the jobs needs, in terms of the present nodes, the largest first.
        groups: the sort keys of the jobs in the queue, one group for each set of equal jobs.
    """

    needs: tuple[PlacedDemand, ...]
    groups: dict[GroupKey, SortedList[Order]] = field(default_factory=dict["GroupKey", "SortedList[Order]"])

    @property
    def types(self) -> frozenset[str]:
        """All node types that the jobs could use."""
        return frozenset[str]().union(*(need.types for need in self.needs))


@final
class Queue:
    """The queued jobs.

    Args:
        quotas: the quotas of projects. Jobs that a quota may hold back stand in separate groups.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._jobs: dict[str, QueuedJob] = {}
        self._order: SortedList[Order] = SortedList()
        self._shapes: dict[tuple[Demand, ...], Shape] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, uid: str) -> bool:
        return uid in self._jobs

    def __getitem__(self, uid: str) -> QueuedJob:
        return self._jobs[uid]

    @property
    def uids(self) -> Collection[str]:
        """The uids of the jobs."""
        return self._jobs.keys()

    @property
    def shapes(self) -> Mapping[tuple[Demand, ...], Shape]:
        """The shapes of the jobs, by their demands."""
        return self._shapes

    def position(self, job: QueuedJob) -> int:
        """Returns a job's position in the queue, from 1."""
        return self._order.index(job.order) + 1

    def page(self, first: int, *, limit: int) -> list[QueuedJob]:
        """Returns up to `limit` jobs in the order of the queue, from a position on that counts from 0."""
        return [self._jobs[order[2]] for order in self._order[first : first + limit]]

    def add(self, job: QueuedJob, *, needs: tuple[PlacedDemand, ...]) -> None:
        """Adds a job, with its demands in terms of the present nodes."""
        self._jobs[job.uid] = job
        self._order.add(job.order)
        shape = self._shapes.get(job.demands)
        if shape is None:
            shape = self._shapes[job.demands] = Shape(needs=needs)
        shape.groups.setdefault(self._group_of(job), SortedList()).add(job.order)

    def remove(self, job: QueuedJob) -> None:
        """Removes a job."""
        del self._jobs[job.uid]
        self._order.remove(job.order)
        shape = self._shapes[job.demands]
        key = self._group_of(job)
        group = shape.groups[key]
        group.remove(job.order)
        if not group:
            del shape.groups[key]
            if not shape.groups:
                del self._shapes[job.demands]

    def regroup(self) -> None:
        """Sorts all jobs into groups again, after the quotas have changed."""
        for shape in self._shapes.values():
            waiting = [self._jobs[order[2]] for group in shape.groups.values() for order in group]
            shape.groups.clear()
            for job in waiting:
                shape.groups.setdefault(self._group_of(job), SortedList()).add(job.order)

    def _group_of(self, job: QueuedJob) -> GroupKey:
        """Returns the key of a job's group: jobs of all projects without quotas share their groups."""
        if job.project not in self._quotas:
            return "", (), job.hold_s
        return job.project, tuple(sorted(job.accelerators.items())), job.hold_s
