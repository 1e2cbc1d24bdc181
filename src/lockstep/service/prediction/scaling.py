"""Decides how many prediction servers a version should have, from its load. Pure: the clock is passed in.

The formula is that of Kubernetes' Horizontal Pod Autoscaler
(https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/#algorithm-details)::

    wanted = ceil(current * observed / target)

where ``observed`` is the mean over the servers. A difference within `TOLERANCE` changes nothing. Of several metrics,
the one that wants most servers counts. The number increases at once, and decreases to the highest number that was
recommended within the stabilization window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import counted
from lockstep.service.prediction.loads import ServerLoad
from lockstep.service.store import ScalingPolicy

TOLERANCE: Final = 0.1
"""The relative difference between observed and target within which the number of servers stays."""
_ROUNDING: Final = 1e-9


@final
@dataclass(frozen=True, kw_only=True)
class Observation:
    """The load of a version.

    Attributes:
        loads: the load of each server that is ready.
        num_waiting: the number of requests that wait at the services, because no server is ready.
        has_requests: whether there was any request since the previous observation.
    """

    loads: Sequence[ServerLoad]
    num_waiting: int
    has_requests: bool


@final
@dataclass(frozen=True, kw_only=True)
class ScalingHistory:
    """What later decisions need of earlier ones. Times are in seconds, by the clock of the caller.

    Attributes:
        last_request_s: the time of the last observation with requests.
        recommendations: times and numbers of servers that were recommended then: those that no later recommendation
            has reached, the oldest first.
    """

    last_request_s: float
    recommendations: tuple[tuple[float, int], ...]

    @classmethod
    def begin(cls, *, current: int, now_s: float, last_request_s: float | None = None) -> ScalingHistory:
        """Returns the history of a version that has not been observed: it counts as rightly scaled.

        Args:
            current: the number of servers that it should have.
            now_s: the present time, in seconds.
            last_request_s: the latest time at which it can have been used, in seconds; None if that is now.
        """
        used_s = now_s if last_request_s is None else min(now_s, last_request_s)
        return cls(last_request_s=used_s, recommendations=((now_s, current),))


@final
@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision.

    Attributes:
        wanted: the number of servers that the version should have.
        reason: a description of the load that led to it.
        history: the history for the next decision.
    """

    wanted: int
    reason: str
    history: ScalingHistory


def decide(
    policy: ScalingPolicy, *, current: int, observed: Observation, history: ScalingHistory, now_s: float
) -> Decision:
    """Decides how many servers a version should have.

    Args:
        policy: the policy of the version.
        current: the number of servers that it should have had until now.
        observed: its load.
        history: the history after the previous decision.
        now_s: the present time, in seconds.
    """
    is_used = observed.has_requests or observed.num_waiting > 0 or any(load.num_open for load in observed.loads)
    last_request_s = now_s if is_used else min(history.last_request_s, now_s)  # the clock may have been set back
    recommended, reason = _recommend(policy, current=current, observed=observed)
    since_s = now_s - policy.stabilization_window_s
    kept = [(time_s, number) for time_s, number in history.recommendations if since_s < time_s <= now_s]
    while kept and kept[-1][1] <= recommended:
        kept.pop()
    kept.append((now_s, recommended))
    highest = kept[0][1]
    wanted = recommended if recommended > current else min(current, highest)
    idle_s = now_s - last_request_s
    if policy.min_servers == 0 and not is_used and (current == 0 or idle_s >= policy.idle_timeout_s):
        wanted, reason = 0, f"no request for {idle_s:.0f} s"
    else:
        wanted = max(policy.first_servers, min(policy.max_servers, wanted))
    next_history = ScalingHistory(last_request_s=last_request_s, recommendations=tuple(kept))
    return Decision(wanted=wanted, reason=reason, history=next_history)


def _recommend(policy: ScalingPolicy, *, current: int, observed: Observation) -> tuple[int, str]:
    """Returns the highest number that a metric recommends, and a description of that metric."""
    loads = observed.loads
    num_open = sum(load.num_open for load in loads) + observed.num_waiting
    # The number of open requests is known, whether or not all servers are ready.
    number = _servers_for(num_open, num_missing=0, target=policy.requests_per_server, current=current)
    described = (
        f"{num_open:.1f} open requests on {counted(len(loads), 'server')}, for {policy.requests_per_server:g} each"
    )
    found = [(number, described)]
    for name, percent, shares in (
        ("CPU usage", policy.cpu_percent, [load.cpu_share for load in loads]),
        ("GPU duty cycle", policy.gpu_percent, [load.gpu_share for load in loads]),
    ):
        known = [share for share in shares if share is not None]
        if percent is None or not known:
            continue
        number = _servers_for(
            sum(known), num_missing=max(0, current - len(known)), target=percent / 100, current=current
        )
        mean = 100 * sum(known) / len(known)
        found.append((number, f"{name} of {mean:.0f}% on {counted(len(known), 'server')}, for {percent}%"))
    return max(found, key=lambda each: each[0])


def _servers_for(total: float, *, num_missing: int, target: float, current: int) -> int:
    """Returns the number of servers for the sum of a metric over the servers.

    Servers whose value is not known count as unused if the number would increase, and as used to the target if it would
    decrease, so that neither a start nor a lost report changes the number.

    Args:
        total: the sum over the servers whose value is known.
        num_missing: the number of other servers.
        target: the target for each server.
        current: the number of servers now.
    """
    if total > (1 + TOLERANCE) * target * current:
        return math.ceil(total / target - _ROUNDING)
    at_most = total / target + num_missing
    if at_most < (1 - TOLERANCE) * current:
        return math.ceil(at_most - _ROUNDING)
    return current
