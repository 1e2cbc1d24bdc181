"""Finds room for a gang now, without taking what is promised to other jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.jobs.scheduling.demands import QueuedJob
from lockstep.jobs.scheduling.nodes import Allocation, Nodes, Vector, fit_count, minus
from lockstep.jobs.scheduling.promises import PlacedDemand, Promise, orders


def must_respect(promise: Promise, job: QueuedJob, *, until_s: float) -> bool:
    """Returns whether a job must respect a promise: it is behind the promised job, and may still run at that time."""
    return promise.order < job.order and until_s > promise.time_s


def take_room(
    job: QueuedJob, needs: Sequence[PlacedDemand], *, until_s: float, nodes: Nodes, promises: Mapping[str, Promise]
) -> tuple[tuple[Allocation, ...] | None, bool]:
    """Takes room for a gang.

    Args:
        job: the job to place.
        needs: the needs of its gang, the largest first.
        until_s: the latest end of the job, in seconds since 1970 UTC.
        nodes: the nodes; nothing is taken from them if the gang does not fit.
        promises: all promises, by the uid of their job.

    Returns:
        The allocations, or None if there is no room; and whether a promise to another job prevented the placement.
    """
    binding = {uid: found for uid, found in promises.items() if must_respect(found, job, until_s=until_s)}
    is_limited = False
    for order in orders(needs):
        allocations, was_limited = _take_respecting_promises(order, nodes=nodes, binding=binding)
        if allocations is not None:
            return allocations, False
        is_limited = is_limited or was_limited
    own = promises.get(job.uid)
    return (None if own is None else _take_promised(own, nodes=nodes)), is_limited


def _take_respecting_promises(
    needs: Sequence[PlacedDemand], *, nodes: Nodes, binding: Mapping[str, Promise]
) -> tuple[tuple[Allocation, ...] | None, bool]:
    """Takes room for a gang that respects promises to other jobs, as `take_room` does, in one order of its demands."""
    taken: list[Allocation] = []
    spared: dict[str, Vector] = {}
    is_limited = False
    for need in needs:
        missing = need.number
        closed = {uid for uid, promise in binding.items() if not promise.can_spare(need.amount)}
        is_limited = is_limited or any(need.types & binding[uid].types for uid in closed)
        for node, fits in nodes.candidates(need.types, need.amount, count=missing, passed_over=closed):
            name, count = node.spec.name, min(fits, missing)
            if node.claim in binding:
                spare = spared.get(name, binding[node.claim].spare[name])
                allowed = min(count, fit_count(spare, need.amount))
                is_limited = is_limited or allowed < count
                count = allowed
                spared[name] = minus(spare, need.amount, count=count)
            if count:
                allocation = Allocation(name, need.position, count, need.amount)
                nodes.take((allocation,))
                taken.append(allocation)
                missing -= count
            if not missing:
                break
        if missing:
            nodes.release(taken)
            return None, is_limited
    return tuple(taken), is_limited


def _take_promised(promise: Promise, *, nodes: Nodes) -> tuple[Allocation, ...] | None:
    """Takes the promised nodes themselves: they have room even where the tightest fit leaves a demand without any."""
    taken: list[Allocation] = []
    for allocation in promise.allocations:
        if fit_count(nodes[allocation.node].free, allocation.amount) < allocation.number:
            nodes.release(taken)
            return None
        nodes.take((allocation,))
        taken.append(allocation)
    return promise.allocations
