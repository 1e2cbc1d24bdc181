"""What others use of nodes that a service does not have to itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median_high
from typing import Final, final

from lockstep.jobs.scheduling.demands import Resources

SETTLE_S: Final = 3.0
"""For how long it is looked, before what was seen counts: much longer than an engine takes to show what was taken."""


@final
class Neighbours:
    """Tells what others use from what is used in all.

    What this service's own jobs use is known at one moment, what is used in all at another: a job that has just started
    or ended looks like somebody else's for that long, or hides it. So the middle counts of what was seen within
    `SETTLE_S`.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[str, dict[str, int]]]] = deque()

    def observe(
        self, used: Mapping[str, Resources], *, own: Mapping[str, Resources], now_s: float
    ) -> dict[str, dict[str, int]]:
        """Returns what others use of each node; nodes and resources of which they use nothing are left out.

        Args:
            used: what is used of each node in all.
            own: what this service's jobs use of each.
            now_s: seconds since 1970 UTC.
        """
        seen = {
            node: {name: amount - own.get(node, {}).get(name, 0) for name, amount in resources.items()}
            for node, resources in used.items()
        }
        if self._looks and self._looks[-1][0] > now_s:  # the clock was set back: nothing of before would ever grow old
            self._looks.clear()
        self._looks.append((now_s, seen))
        while self._looks[0][0] < now_s - SETTLE_S:
            self._looks.popleft()
        found: dict[str, dict[str, int]] = {}
        for node, resources in seen.items():
            looks = [look[node] for _, look in self._looks if node in look]
            middle = {name: median_high(look.get(name, 0) for look in looks) for name in resources}
            others = {name: amount for name, amount in middle.items() if amount > 0}
            if others:
                found[node] = others
        return found


def describe_others(others: Mapping[str, Resources], *, totals: Mapping[str, Resources]) -> str:
    """Says what others use in all: "others use 4 of 8 vCPUs"; "" where they use nothing.

    Args:
        others: what they use of each node.
        totals: what each node has.
    """
    words = {"vcpus": "vCPUs", "memory_mib": "MiB of memory"}
    names = dict.fromkeys(name for resources in others.values() for name in resources)
    parts: list[str] = []
    for name in names:
        taken = sum(resources.get(name, 0) for resources in others.values())
        total = sum(resources.get(name, 0) for resources in totals.values())
        parts.append(f"{taken:,} of {total:,} {words.get(name, name)}")
    return f"others use {', '.join(parts)}" if parts else ""
