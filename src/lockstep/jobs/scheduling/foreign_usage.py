"""Measures what others use of nodes that a service shares with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median_high
from typing import Final, final

from lockstep.jobs.scheduling.demands import Resources

SETTLE_S: Final = 3.0
"""The period whose observations count, in seconds: much longer than an engine takes to report what was taken."""


@final
class ForeignUsage:
    """Computes what others use from the total usage and the service's own usage.

    The service's own usage and the total usage are known at different moments. In between, a job that has just started
    or ended looks like a job of others, or hides one. The result is therefore the median of the observations within
    `SETTLE_S`.
    """

    def __init__(self) -> None:
        self._observations: deque[tuple[float, dict[str, dict[str, int]]]] = deque()

    def observe(
        self, used: Mapping[str, Resources], *, own: Mapping[str, Resources], now_s: float
    ) -> dict[str, dict[str, int]]:
        """Adds an observation, and returns what others use of each node, without what they do not use.

        Args:
            used: the total usage of each node.
            own: the usage of each node by this service's jobs.
            now_s: the current time, in seconds since 1970 UTC.
        """
        seen = {
            node: {name: amount - own.get(node, {}).get(name, 0) for name, amount in resources.items()}
            for node, resources in used.items()
        }
        if (
            self._observations and self._observations[-1][0] > now_s
        ):  # the clock was set back; old observations would never expire
            self._observations.clear()
        self._observations.append((now_s, seen))
        while self._observations[0][0] < now_s - SETTLE_S:
            self._observations.popleft()
        found: dict[str, dict[str, int]] = {}
        for node, resources in seen.items():
            observed = [usage[node] for _, usage in self._observations if node in usage]
            middle = {name: median_high(usage.get(name, 0) for usage in observed) for name in resources}
            others = {name: amount for name, amount in middle.items() if amount > 0}
            if others:
                found[node] = others
        return found


def describe_foreign_usage(others: Mapping[str, Resources], *, totals: Mapping[str, Resources]) -> str:
    """Describes the total usage by others, as in "others use 4 of 8 vCPUs"; "" if they use nothing.

    Args:
        others: the usage of each node by others.
        totals: the total resources of each node.
    """
    words = {"vcpus": "vCPUs", "memory_mib": "MiB of memory"}
    names = dict.fromkeys(name for resources in others.values() for name in resources)
    parts: list[str] = []
    for name in names:
        taken = sum(resources.get(name, 0) for resources in others.values())
        total = sum(resources.get(name, 0) for resources in totals.values())
        parts.append(f"{taken:,} of {total:,} {words.get(name, name)}")
    return f"others use {', '.join(parts)}" if parts else ""
