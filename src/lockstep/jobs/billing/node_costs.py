"""Divides the time of a node, from up to down in the ledger, by what it was for. The parts are the whole time.

The time is **used** while replicas on the node are in RUNNING. It is charged to their jobs in proportion to the vCPUs
of their replicas. The time before the node is ready is **provisioning**, and is charged to the job that it was
requested for. The time after the node failed is **failed**, and so is all the time of a node that never became ready.
The rest is **idle**, and is charged to the job that used the node last, or to the job that it was requested for. Times
are whole microseconds and sums are fractions, so nothing is lost to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, final

from lockstep.jobs.provisioning import NodeRecord

_MICROSECONDS_PER_S: Final = 10**6


@final
class NodeShare(StrEnum):
    """What a part of a node's time was for."""

    USED = "used"
    PROVISIONING = "provisioning"
    IDLE = "idle"
    FAILED = "failed"


@final
@dataclass(frozen=True, kw_only=True)
class NodeUse:
    """One replica in RUNNING on a node.

    Attributes:
        job: uid of the replica's job.
        machine: the name of the node.
        vcpus: the number of vCPUs of the replica's machine type.
        start_us: the start, in microseconds since 1970 UTC.
        end_us: the end.
    """

    job: str
    machine: str
    vcpus: int
    start_us: int
    end_us: int


@final
@dataclass(frozen=True, kw_only=True)
class NodeSlice:
    """A part of a node's time.

    Attributes:
        node: the node.
        share: what the time was for.
        job: uid of the job that the time is charged to; None if it is charged to no job.
        start_us: the start, in microseconds since 1970 UTC.
        end_us: the end.
        part: the fraction of the node that was used in that time, above 0 and at most 1.
    """

    node: NodeRecord
    share: NodeShare
    job: str | None
    start_us: int
    end_us: int
    part: Fraction = Fraction(1)

    @property
    def hours(self) -> Fraction:
        """The length, in hours of a whole node."""
        return Fraction(self.end_us - self.start_us, 3600 * _MICROSECONDS_PER_S) * self.part

    @property
    def cost_usd(self) -> Fraction | None:
        """The cost in US dollars; None if the node is unpriced."""
        return None if self.node.usd_per_hour is None else Fraction(self.node.usd_per_hour) * self.hours

    def clip(self, *, since_us: int, until_us: int) -> NodeSlice | None:
        """Returns the part that lies in an interval; None if there is none."""
        start_us, end_us = max(self.start_us, since_us), min(self.end_us, until_us)
        return replace(self, start_us=start_us, end_us=end_us) if start_us < end_us else None


def microseconds(time_s: float) -> int:
    """Returns a time in whole microseconds."""
    return round(time_s * _MICROSECONDS_PER_S)


def split_nodes(nodes: Iterable[NodeRecord], *, uses: Iterable[NodeUse], now_s: float) -> list[NodeSlice]:
    """Divides the time of nodes; see `split_node`.

    Args:
        nodes: the nodes.
        uses: what ran on the nodes, in any order. Uses of other nodes are ignored.
        now_s: the end of nodes that are not down, in seconds since 1970 UTC.
    """
    by_machine: dict[str, list[NodeUse]] = {}
    for use in uses:
        by_machine.setdefault(use.machine, []).append(use)
    return [piece for node in nodes for piece in split_node(node, uses=by_machine.get(node.name, ()), now_s=now_s)]


def split_node(node: NodeRecord, *, uses: Sequence[NodeUse], now_s: float) -> Iterator[NodeSlice]:
    """Divides a node's time from up to down. The slices are in order, and cover the whole time once.

    A node that never came up yields nothing.

    Args:
        node: the node.
        uses: what ran on the node, in any order.
        now_s: the end of the node's time if it is not down, in seconds since 1970 UTC.
    """
    if node.up_time_s is None:
        return
    up_us = microseconds(node.up_time_s)
    down_us = microseconds(now_s if node.down_time_s is None else node.down_time_s)
    marks = {up_us, down_us}
    for time_s in (node.ready_time_s, node.failed_time_s):
        if time_s is not None:
            marks.add(microseconds(time_s))
    real = [use for use in uses if use.start_us < use.end_us]
    for use in real:
        marks |= {use.start_us, use.end_us}
    bounds = sorted(mark for mark in marks if up_us <= mark <= down_us)
    last = node.asked_for
    coming = sorted(real, key=lambda use: use.start_us, reverse=True)
    there: list[NodeUse] = []
    for start_us, end_us in itertools.pairwise(bounds):
        while coming and coming[-1].start_us <= start_us:
            there.append(coming.pop())
        there = [use for use in there if use.end_us > start_us]
        if there:
            last = max(there, key=lambda use: (use.end_us, use.job)).job
            vcpus: dict[str, int] = {}
            for use in there:
                vcpus[use.job] = vcpus.get(use.job, 0) + use.vcpus
            yield from _used(node, vcpus, start_us=start_us, end_us=end_us)
        else:
            share = _unused(node, start_us=start_us)
            yield NodeSlice(node=node, share=share, job=last, start_us=start_us, end_us=end_us)


def _used(node: NodeRecord, vcpus: Mapping[str, int], *, start_us: int, end_us: int) -> Iterator[NodeSlice]:
    total = sum(vcpus.values())
    for job, count in sorted(vcpus.items()):
        part = Fraction(count, total)
        yield NodeSlice(node=node, share=NodeShare.USED, job=job, start_us=start_us, end_us=end_us, part=part)


def _unused(node: NodeRecord, *, start_us: int) -> NodeShare:
    failed_us = None if node.failed_time_s is None else microseconds(node.failed_time_s)
    if node.has_never_served or (failed_us is not None and start_us >= failed_us):
        return NodeShare.FAILED
    if node.ready_time_s is None or start_us < microseconds(node.ready_time_s):
        return NodeShare.PROVISIONING
    return NodeShare.IDLE
