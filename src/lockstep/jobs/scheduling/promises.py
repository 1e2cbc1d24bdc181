"""Reserves room for the first job in the queue that does not fit, so that jobs that start before it cannot delay it.

This is EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001) on nodes with
several resources. The latest end times of the running jobs determine the latest time at which the first job has room,
and on which nodes. A job that starts before it must either end by that time, or leave on those nodes what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, permutations
from typing import Final, NamedTuple, final

from lockstep.jobs.scheduling.demands import Order, QueuedJob
from lockstep.jobs.scheduling.nodes import Allocation, Nodes, Vector, fit_count, minus

MAX_ORDERS: Final = 24
"""The maximum number of orders in which a gang's demands are tried: all orders, for four demands."""

MAX_STEPS: Final = 2000
"""The maximum number of placements that the search tries for a gang that fits in no simple way."""


class PlacedDemand(NamedTuple):
    """One demand of a gang, in terms of the present nodes.

    Attributes:
        number: the number of replicas.
        amount: the amounts that each replica takes.
        types: the node types that the replicas may be placed on.
    """

    number: int
    amount: Vector
    types: frozenset[str]
    position: int
    """The index among the gang's demands."""


class Release(NamedTuple):
    """What a running job releases, and when at the latest.

    Attributes:
        time_s: the latest time of the release, in seconds since 1970 UTC.
        allocations: the allocations of the job.
    """

    time_s: float
    allocations: Sequence[Allocation]


@final
@dataclass(kw_only=True, slots=True)
class Promise:
    """Room that is kept for a job.

    Attributes:
        job: the job that it is kept for.
        order: the job's sort key in the queue.
        time_s: the latest start time, in seconds since 1970 UTC.
        made_time_s: the time when the promise was made or last reviewed, in seconds since 1970 UTC.
        types: all node types that the job could use; no other job has a promise of any of them.
        allocations: the allocations that certainly have room at that time.
        spare: what other jobs may hold beyond that time of each promised node, by the name of the node; it only
            shrinks.
        exhausted: the amounts that no promised node can spare any more.
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
        """Returns whether a replica with an amount could hold a part of any promised node beyond the promise's time."""
        if amount in self.exhausted:
            return False
        if any(fit_count(spare, amount) for spare in self.spare.values()):
            return True
        self.exhausted.add(amount)
        return False


def orders(needs: Sequence[PlacedDemand]) -> Iterator[tuple[PlacedDemand, ...]]:
    """Yields the orders in which to try placing a gang's demands, beginning with the given order.

    Placing the largest demand first leaves the small ones the rest. But a demand that only few nodes can hold may have
    to come before a larger one that has alternatives.
    """
    return islice(permutations(needs), MAX_ORDERS)


def place(needs: Sequence[PlacedDemand], *, nodes: Nodes) -> tuple[Allocation, ...] | None:
    """Places a gang on nodes without promises.

    Each demand goes where it fits most tightly. If that fails in every order of the demands, a search places replica by
    replica. Its `MAX_STEPS` suffice for a small gang and a small cluster, where wasted room matters most.

    Returns:
        The allocations that were taken; None, with nothing taken, if no placement was found.
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


def _search(needs: Sequence[PlacedDemand], *, nodes: Nodes) -> tuple[Allocation, ...] | None:
    """Searches for a placement of a gang by backtracking; gives up after `MAX_STEPS`."""
    replicas = [need for need in needs for _ in range(need.number)]
    taken: list[Allocation] = []
    untried: list[list[str]] = []  # the nodes still to try for each replica, the best one last
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
    needs: Sequence[PlacedDemand],
    types: frozenset[str],
    nodes: Nodes,
    releases: Iterable[Release],
    now_s: float,
) -> Promise | None:
    """Finds the earliest time at which a gang certainly has room, even if running jobs use all of their time.

    Args:
        job: the job that does not fit now.
        needs: the needs of its gang, the largest first.
        types: the node types of all needs.
        nodes: the nodes with what is free now.
        releases: what running jobs release, the earliest first.
        now_s: the current time, in seconds since 1970 UTC.

    Returns:
        The promise; None if the gang does not fit even on empty nodes.
    """
    freed: dict[str, Vector] = {}
    room = [nodes.room(need.types, need.amount) for need in needs]
    time_s, allocations = now_s, None
    for release in chain((Release(now_s, ()),), releases):  # another order may find room even now
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
        if _has_room(room, needs):
            tried = (_reserve(order, nodes=nodes, freed=freed) for order in orders(needs))
            allocations = next((found for found in tried if found is not None), None)
            if allocations is not None:
                break
    if allocations is None and len(needs) > 1 and _has_room(room, needs):
        # All nodes that the gang could use are empty at this time, so a gang that fits only on empty nodes fits.
        allocations = place(needs, nodes=nodes.without_allocations())
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


def _has_room(room: Sequence[int], needs: Sequence[PlacedDemand]) -> bool:
    """Returns whether each demand has room, regardless of the others."""
    return all(have >= need.number for have, need in zip(room, needs, strict=True))


def _reserve(needs: Sequence[PlacedDemand], *, nodes: Nodes, freed: dict[str, Vector]) -> list[Allocation] | None:
    """Chooses nodes for a gang; returns None if it does not fit.

    Nodes that are busy until then are preferred, so that other jobs can use what is free now for longer.
    """
    allocations: list[Allocation] = []
    left = dict(freed)
    for need in needs:
        missing = need.number
        busy = [name for name in freed if nodes[name].spec.node_type in need.types]
        # `candidates` also lists nodes whose room has changed since; the loop skips them, so more have to be listed.
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
