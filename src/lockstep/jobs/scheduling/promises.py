"""What the first job that finds no room is promised, so that nobody who is let past it can delay it.

This is EASY back-fill (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001), on nodes with
several resources: from the times at which running jobs end at the latest follows when, and on which nodes, the first
job has room at the latest. Whoever starts before it either ends by then, or leaves on those nodes what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from lockstep.jobs.scheduling.demands import Order, QueuedJob
from lockstep.jobs.scheduling.nodes import Nodes, Share, Vector, fit_count, minus


class Need(NamedTuple):
    """One demand of a gang, in the terms of the nodes that there are."""

    number: int
    amount: Vector
    types: frozenset[str]
    position: int
    """Its place among the gang's demands."""


class Release(NamedTuple):
    """When a running job gives back its machines at the latest."""

    time_s: float
    shares: Sequence[Share]


@final
@dataclass(kw_only=True, slots=True)
class Promise:
    """Room that is kept for a job.

    Attributes:
        job: the job.
        order: its place in the queue.
        time_s: when it starts at the latest, seconds since 1970 UTC.
        made_time_s: when the promise was made.
        types: all node types that the job could use; no other job is promised any of them.
        spare: what others may hold of each promised node beyond that time, by the node's name; it only shrinks.
        exhausted: amounts that no promised node can spare any more.
    """

    job: QueuedJob
    order: Order
    time_s: float
    made_time_s: float
    types: frozenset[str]
    spare: dict[str, Vector]
    exhausted: set[Vector] = field(default_factory=set[Vector])

    def can_spare(self, amount: Vector) -> bool:
        """Whether any promised node could be held by a replica of an amount beyond that time."""
        if amount in self.exhausted:
            return False
        if any(fit_count(spare, amount) for spare in self.spare.values()):
            return True
        self.exhausted.add(amount)
        return False


def make_promise(
    job: QueuedJob,
    *,
    needs: Sequence[Need],
    types: frozenset[str],
    nodes: Nodes,
    releases: Iterable[Release],
    now_s: float,
) -> Promise | None:
    """Finds the earliest time at which a gang has room if running jobs use all of their time.

    Args:
        job: the job that finds no room now.
        needs: what its gang needs, the largest first.
        types: the node types of all of them.
        nodes: what is free now.
        releases: what running jobs give back, the earliest first.
        now_s: seconds since 1970 UTC.

    Returns:
        The promise; None where the gang has no room even on empty nodes.
    """
    freed: dict[str, Vector] = {}
    room = [nodes.room(need.types, need.amount) for need in needs]
    for release in releases:
        for share in release.shares:
            if share.node not in nodes:
                continue
            node = nodes[share.node]
            if node.spec.node_type not in types:
                continue
            before = freed.get(share.node, node.free)
            after = freed[share.node] = minus(before, share.amount, count=-share.number)
            for position, need in enumerate(needs):
                if node.spec.node_type in need.types:
                    room[position] += fit_count(after, need.amount) - fit_count(before, need.amount)
        if all(have >= need.number for have, need in zip(room, needs, strict=True)):
            spare = _reserve(needs, nodes=nodes, freed=freed)
            if spare is not None:
                return Promise(
                    job=job,
                    order=job.order,
                    time_s=max(release.time_s, now_s),
                    made_time_s=now_s,
                    types=types,
                    spare=spare,
                )
    return None


def _reserve(needs: Sequence[Need], *, nodes: Nodes, freed: dict[str, Vector]) -> dict[str, Vector] | None:
    """Chooses nodes for a gang; returns what is left of them, None where it does not fit.

    Nodes that are busy until then come first, so that what is free now can be had by others for longer.
    """
    left: dict[str, Vector] = {}
    for need in needs:
        missing = need.number
        busy = [(name, free) for name, free in freed.items() if nodes[name].spec.node_type in need.types]
        idle = nodes.candidates(
            need.types, need.amount, count=missing + sum(fit_count(f, need.amount) for _, f in busy)
        )
        for name, free in (
            *reversed(busy),
            *((node.spec.name, node.free) for node, _ in idle if node.spec.name not in freed),
        ):
            free = left.get(name, free)
            count = min(missing, fit_count(free, need.amount))
            if count:
                left[name] = minus(free, need.amount, count=count)
                missing -= count
            if not missing:
                break
        if missing:
            return None
    return left
