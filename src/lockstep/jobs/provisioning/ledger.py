"""Defines the ledger of nodes: what was requested, what happened to it, and when. Nodes are billed from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

SEEN_S: Final = 10.0
"""The interval at which it is recorded that a machine was seen, in seconds."""

UNSEEN_S: Final = 60.0
"""A machine that was not seen for longer than this, in seconds, is billed only until it was last seen."""


@final
class NodeState(StrEnum):
    """The state of a node."""

    ASKED = "asked"
    """The machine was requested from the provider, or is about to be."""
    UP = "up"
    """The provider has the machine, which costs money from now on; its node has not joined yet."""
    READY = "ready"
    """The node has joined the engine."""
    RELEASED = "released"
    """The provider was asked to take the machine back, or is about to be."""
    DOWN = "down"
    """The provider no longer has the machine."""


@final
@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """One node, from its request until it is gone. The times are recorded; the state follows from them.

    Attributes:
        name: the permanent name of the node and its machine, at the provider and on the engine.
        slot: the slot of its type that it fills, such as ``v100-2``; the scheduler knows it by this name.
        node_type: the name of its type in the cluster's definition.
        asked_for: the uid of the job for which it was requested; None if it is a node that is always kept.
        asked_time_s: the time when it was requested, in seconds since 1970 UTC.
        up_time_s: the time when the provider was first seen to have its machine.
        ready_time_s: the time when the node was first seen on the engine.
        idle_time_s: the time since which no job holds it; None while a job does.
        released_time_s: the time when it was decided to release it.
        down_time_s: the time when the provider was first seen without its machine; or when the provider was last seen
            with it, if nobody checked for a while after that.
        failed_time_s: the time when it was found that the node will not become ready, or no longer works.
        seen_time_s: the time when the provider was last seen to have its machine, to within `SEEN_S`.
        reason: why it failed or was released.
        machine: a description of the machine, such as "n1-standard-8 + 2 x NVIDIA_TESLA_V100".
        usd_per_hour: the price in US dollars per hour, as a decimal number, as known at the time of the request; None
            if it is unpriced.
        price_source: the source of the price.
        simulated: whether the node is simulated, so that it costs nothing.
    """

    name: str
    slot: str
    node_type: str
    asked_for: str | None = None
    asked_time_s: float
    up_time_s: float | None = None
    ready_time_s: float | None = None
    idle_time_s: float | None = None
    released_time_s: float | None = None
    down_time_s: float | None = None
    failed_time_s: float | None = None
    seen_time_s: float | None = None
    reason: str = ""
    machine: str = ""
    usd_per_hour: str | None = None
    price_source: str = ""
    simulated: bool = False

    def gone_since_s(self, now_s: float) -> float:
        """Returns the time until which a node is billed whose machine the provider no longer has.

        Args:
            now_s: the time when the machine was found missing, in seconds since 1970 UTC. It is the result if the
                machine was seen at most `UNSEEN_S` earlier; otherwise the result is when the machine was last seen.
        """
        if self.seen_time_s is None or now_s - self.seen_time_s <= UNSEEN_S:
            return now_s
        return max(self.seen_time_s, self.ready_time_s or 0.0)

    @property
    def state(self) -> NodeState:
        """The state of the node."""
        if self.down_time_s is not None:
            return NodeState.DOWN
        if self.released_time_s is not None:
            return NodeState.RELEASED
        if self.ready_time_s is not None:
            return NodeState.READY
        return NodeState.ASKED if self.up_time_s is None else NodeState.UP

    @property
    def has_never_served(self) -> bool:
        """Whether the node failed before it was ready."""
        return self.failed_time_s is not None and self.ready_time_s is None
