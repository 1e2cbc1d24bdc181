"""The jobs that wait: in their order, and by what they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import final

from sortedcontainers import SortedList

from lockstep.jobs.scheduling.demands import Demand, Order, QueuedJob
from lockstep.jobs.scheduling.promises import Need
from lockstep.jobs.scheduling.quotas import Quotas

LineKey = tuple[str, tuple[tuple[str, int], ...], float]
"""What makes jobs of one shape alike: the project and what counts against its quota, if it has one, and the time."""


@final
@dataclass(kw_only=True, slots=True, eq=False)
class Shape:
    """All queued jobs that need the same of the nodes.

    Attributes:
        needs: what they need, in the terms of the nodes, the largest first.
        lines: their places in the queue, apart where they are not alike.
    """

    needs: tuple[Need, ...]
    lines: dict[LineKey, SortedList[Order]] = field(default_factory=dict["LineKey", "SortedList[Order]"])

    @property
    def types(self) -> frozenset[str]:
        """All node types that such a job could use."""
        return frozenset[str]().union(*(need.types for need in self.needs))


@final
class Queue:
    """The jobs that wait.

    Args:
        quotas: what projects may use: jobs that the quota of their project may hold back stand apart.
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
        """All of them."""
        return self._jobs.keys()

    @property
    def shapes(self) -> Mapping[tuple[Demand, ...], Shape]:
        """All of them by their demands."""
        return self._shapes

    def position(self, job: QueuedJob) -> int:
        """Returns a job's place in the queue, from 1."""
        return self._order.index(job.order) + 1

    def add(self, job: QueuedJob, *, needs: tuple[Need, ...]) -> None:
        """Takes in a job, with its demands in the terms of the nodes."""
        self._jobs[job.uid] = job
        self._order.add(job.order)
        shape = self._shapes.get(job.demands)
        if shape is None:
            shape = self._shapes[job.demands] = Shape(needs=needs)
        shape.lines.setdefault(self._line_of(job), SortedList()).add(job.order)

    def remove(self, job: QueuedJob) -> None:
        """Takes a job out."""
        del self._jobs[job.uid]
        self._order.remove(job.order)
        shape = self._shapes[job.demands]
        key = self._line_of(job)
        line = shape.lines[key]
        line.remove(job.order)
        if not line:
            del shape.lines[key]
            if not shape.lines:
                del self._shapes[job.demands]

    def line_up(self) -> None:
        """Puts all jobs into lines anew, when quotas are others than they were."""
        for shape in self._shapes.values():
            waiting = [self._jobs[order[2]] for line in shape.lines.values() for order in line]
            shape.lines.clear()
            for job in waiting:
                shape.lines.setdefault(self._line_of(job), SortedList()).add(job.order)

    def _line_of(self, job: QueuedJob) -> LineKey:
        """Returns the line in which a job stands: jobs of projects without quotas stand together."""
        if job.project not in self._quotas:
            return "", (), job.hold_s
        return job.project, tuple(sorted(job.accelerators.items())), job.hold_s
