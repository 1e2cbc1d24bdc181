"""What the first job that finds no room is promised, so that nobody who is let past it can delay it.

This is EASY back-fill (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001), on nodes with
several resources: from the times at which running jobs end at the latest follows when, and on which nodes, the first
job has room at the latest. Whoever starts before it either ends by then, or leaves on those nodes what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, permutations
from typing import Final, NamedTuple, final

from lockstep.jobs.scheduling.demands import Order, QueuedJob
from lockstep.jobs.scheduling.nodes import Allocation, Nodes, Vector, fit_count, minus

MAX_ORDERS: Final = 24
"""In how many orders the demands of a gang are tried: all of them, for four demands."""

MAX_STEPS: Final = 2000
"""How many replicas are put somewhere at the most in search of a way to place a gang that fits in no simple way."""


class Need(NamedTuple):
    """One demand of a gang, in the terms of the nodes that there are."""

    number: int
    amount: Vector
    types: frozenset[str]
    position: int
    """Its place among the gang's demands."""


class Release(NamedTuple):
    """When a running job releases its machines at the latest."""

    time_s: float
    allocations: Sequence[Allocation]


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
        allocations: where it has room then, for sure.
        spare: what others may hold of each promised node beyond that time, by the node's name; it only shrinks.
        exhausted: amounts that no promised node can spare any more.
    """

    job: QueuedJob
    order: Order
    time_s: float
    made_time_s: float
    types: frozenset[str]
    allocations: tuple[Allocation, ...]
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


def orders(needs: Sequence[Need]) -> Iterator[tuple[Need, ...]]:
    """Yields the orders in which a gang's demands may be placed, the order in which they come first of all.

    The largest first leaves the small ones what is left. But one that few nodes can hold may have to come before a
    larger one that could go elsewhere.
    """
    return islice(permutations(needs), MAX_ORDERS)


def place(needs: Sequence[Need], *, nodes: Nodes) -> tuple[Allocation, ...] | None:
    """Places a gang on nodes of which none is promised to anybody.

    Each demand goes where it fits the tightest. Where that fails in every order of the demands, another way is searched
    for, replica by replica. `MAX_STEPS` are enough where gang and cluster are small, and a wasted corner matters.

    Returns:
        What was taken of which nodes; None, and nothing is taken, where no way was found.
    """
    for order in orders(needs):
        taken: list[Allocation] = []
        for need in order:
            missing = need.number
            for node, fits in nodes.candidates(need.types, need.amount, count=missing):
                allocation = Allocation(node.spec.name, need.position, min(fits, missing), need.amount)
                nodes.take((allocation,))
                taken.append(allocation)
                missing -= allocation.number
                if not missing:
                    break
            if missing:
                break
        else:
            return tuple(taken)
        nodes.release(taken)
    return _search(needs, nodes=nodes)


def _search(needs: Sequence[Need], *, nodes: Nodes) -> tuple[Allocation, ...] | None:
    """Looks for a way to place a gang, by trying and taking back; gives up after `MAX_STEPS`."""
    replicas = [need for need in needs for _ in range(need.number)]
    taken: list[Allocation] = []
    untried: list[list[str]] = []  # where each replica may still be tried, the best place last
    for _ in range(MAX_STEPS):
        if len(taken) == len(replicas):
            return tuple(taken)
        need = replicas[len(taken)]
        if len(untried) == len(taken):
            found = nodes.candidates(need.types, need.amount, count=1)
            untried.append([node.spec.name for node, _ in reversed(found)])
        if untried[-1]:
            taken.append(Allocation(untried[-1].pop(), need.position, 1, need.amount))
            nodes.take(taken[-1:])
        elif taken:
            untried.pop()
            nodes.release((taken.pop(),))
        else:
            return None
    nodes.release(taken)
    return None


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
        releases: what running jobs release, the earliest first.
        now_s: seconds since 1970 UTC.

    Returns:
        The promise; None where the gang has no room even on empty nodes.
    """
    freed: dict[str, Vector] = {}
    room = [nodes.room(need.types, need.amount) for need in needs]
    time_s, allocations = now_s, None
    for release in chain((Release(now_s, ()),), releases):  # there may be room now, if one looks for it in another way
        time_s = max(time_s, release.time_s)
        for allocation in release.allocations:
            if allocation.node not in nodes:
                continue
            node = nodes[allocation.node]
            before = freed.get(allocation.node, node.free)
            after = freed[allocation.node] = minus(before, allocation.amount, count=-allocation.number)
            for position, need in enumerate(needs):
                if node.spec.node_type in need.types:
                    room[position] += fit_count(after, need.amount) - fit_count(before, need.amount)
        if _suffices(room, needs):
            tried = (_reserve(order, nodes=nodes, freed=freed) for order in orders(needs))
            allocations = next((found for found in tried if found is not None), None)
            if allocations is not None:
                break
    if allocations is None and len(needs) > 1 and _suffices(room, needs):
        # All nodes that it could use are empty by now: who fits on nothing but empty nodes fits.
        allocations = place(needs, nodes=nodes.emptied())
    if allocations is None:
        return None
    spare: dict[str, Vector] = {}
    for allocation in allocations:
        free = spare.get(allocation.node) or freed.get(allocation.node) or nodes[allocation.node].free
        spare[allocation.node] = minus(free, allocation.amount, count=allocation.number)
    return Promise(
        job=job,
        order=job.order,
        time_s=time_s,
        made_time_s=now_s,
        types=types,
        allocations=tuple(allocations),
        spare=spare,
    )


def _suffices(room: Sequence[int], needs: Sequence[Need]) -> bool:
    """Whether each demand has room, if the others are not there."""
    return all(have >= need.number for have, need in zip(room, needs, strict=True))


def _reserve(needs: Sequence[Need], *, nodes: Nodes, freed: dict[str, Vector]) -> list[Allocation] | None:
    """Chooses nodes for a gang; returns None where it does not fit.

    Nodes that are busy until then come first, so that what is free now can be had by others for longer.
    """
    allocations: list[Allocation] = []
    left = dict(freed)
    for need in needs:
        missing = need.number
        busy = [name for name in freed if nodes[name].spec.node_type in need.types]
        # Nodes whose room is other than it is now are named too, and have to be passed over.
        passed_over = sum(fit_count(nodes[name].free, need.amount) for name in left)
        idle = nodes.candidates(need.types, need.amount, count=missing + passed_over)
        for name in (*reversed(busy), *(node.spec.name for node, _ in idle if node.spec.name not in freed)):
            free = left.get(name) or nodes[name].free
            count = min(missing, fit_count(free, need.amount))
            if count:
                allocations.append(Allocation(name, need.position, count, need.amount))
                left[name] = minus(free, need.amount, count=count)
                missing -= count
            if not missing:
                break
        if missing:
            return None
    return allocations
