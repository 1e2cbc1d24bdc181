"""What machines would have cost that are there all the time: as many of each kind as there were at once at the most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, final

from lockstep.jobs.billing.bills import COST_DECIMALS, ReplicaUsage, round_half_up
from lockstep.jobs.billing.days import day_start_s, next_day_s
from lockstep.jobs.billing.node_costs import NodeSlice, microseconds
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.machines.catalogue import Catalogue

_MICROSECONDS_PER_S: Final = 10**6


@final
@dataclass(frozen=True, kw_only=True)
class MachineTime:
    """A while in which there was a machine.

    Attributes:
        kind: what it is, in words.
        usd_per_hour: what it costs, in US dollars; None where it is unpriced.
        node: the node, where it is one of the ledger's; what overlaps of one node is one machine.
        start_us: when it began, microseconds since 1970 UTC.
        end_us: when it ended.
    """

    kind: str
    usd_per_hour: Fraction | None
    node: str = ""
    start_us: int
    end_us: int

    @classmethod
    def of_usage(cls, usage: ReplicaUsage, *, catalogue: Catalogue) -> MachineTime:
        """Returns that of a replica on a machine of its own."""
        words = describe_machine(usage.machine_type, accelerator=usage.accelerator)
        return cls(
            kind=words if usage.region is None else f"{words} in {usage.region}",
            usd_per_hour=catalogue.usd_per_hour(usage.machine_type, accelerator=usage.accelerator, region=usage.region),
            start_us=microseconds(usage.start_time_s),
            end_us=microseconds(usage.end_time_s),
        )

    @classmethod
    def of_slice(cls, piece: NodeSlice) -> MachineTime:
        """Returns that of a node."""
        price = piece.node.usd_per_hour
        return cls(
            kind=f"node {piece.node.machine or piece.node.node_type}",
            usd_per_hour=None if price is None else Fraction(price),
            node=piece.node.name,
            start_us=piece.start_us,
            end_us=piece.end_us,
        )


@final
@dataclass(frozen=True, kw_only=True)
class AlwaysOnMachines:
    """Machines of one kind.

    Attributes:
        kind: what they are, in words.
        count: how many there were at once, at the most.
        cost_usd: what so many would have cost, in US dollars, to four decimals (half up); None where unpriced.
    """

    kind: str
    count: int
    cost_usd: Decimal | None


@final
@dataclass(frozen=True, kw_only=True)
class AlwaysOn:
    """Machines that are there all the time.

    Attributes:
        since_s: from when on, seconds since 1970 UTC: the beginning of the first day on which there was any.
        until_s: until when: the end of the last one.
        machines: by kind.
        cost_usd: what those with a price would have cost, in US dollars, to four decimals (half up).
    """

    since_s: float
    until_s: float
    machines: tuple[AlwaysOnMachines, ...]
    cost_usd: Decimal


def always_on(times: Iterable[MachineTime], *, since_s: float, until_s: float) -> AlwaysOn | None:
    """Says what as many machines as there were at once would have cost over the same days; None where there were none.

    Days are whole ones (UTC), but for what lies outside of the while.

    Args:
        times: when there was which machine.
        since_s: the beginning of the while, seconds since 1970 UTC.
        until_s: its end.
    """
    found = [time for time in times if time.start_us < time.end_us]
    if not found:
        return None
    first_s = max(since_s, day_start_s(min(time.start_us for time in found) / _MICROSECONDS_PER_S))
    last_us = max(time.end_us for time in found) - 1
    last_s = min(until_s, next_day_s(last_us / _MICROSECONDS_PER_S))
    hours = Fraction(microseconds(last_s) - microseconds(first_s), 3600 * _MICROSECONDS_PER_S)
    by_kind: dict[tuple[str, Fraction | None], list[MachineTime]] = {}
    for time in found:
        by_kind.setdefault((time.kind, time.usd_per_hour), []).append(time)
    machines: list[AlwaysOnMachines] = []
    total = Fraction(0)
    for (kind, usd_per_hour), alike in sorted(by_kind.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        count = _most_at_once(alike)
        usd = None if usd_per_hour is None else usd_per_hour * hours * count
        total += usd or 0
        cost_usd = None if usd is None else round_half_up(usd, decimals=COST_DECIMALS)
        machines.append(AlwaysOnMachines(kind=kind, count=count, cost_usd=cost_usd))
    return AlwaysOn(
        since_s=first_s,
        until_s=last_s,
        machines=tuple(machines),
        cost_usd=round_half_up(total, decimals=COST_DECIMALS),
    )


def _most_at_once(times: Iterable[MachineTime]) -> int:
    marks: list[tuple[int, int, str]] = []
    for time in times:
        marks += [(time.start_us, 1, time.node), (time.end_us, -1, time.node)]
    parts: dict[str, int] = {}  # of each node, how many whiles go on: they are one machine
    count = most = 0
    for _, change, node in sorted(marks):  # what ends comes before what begins at the same moment
        if node:
            before = parts.get(node, 0)
            parts[node] = before + change
            count += bool(parts[node]) - bool(before)
        else:
            count += change
        most = max(most, count)
    return most
