"""The ledger of nodes: what was asked of the provider, what came of it, and when. It is what is billed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

SEEN_S: Final = 10.0
"""How often it is noted that a machine is seen."""

UNSEEN_S: Final = 60.0
"""A machine that was not seen for longer is gone since it was seen last, as far as it is billed."""


@final
class NodeState(StrEnum):
    """How far a node is."""

    ASKED = "asked"
    """The provider was asked for its machine, or is about to be."""
    UP = "up"
    """The provider has the machine, which costs from here on; its node has not joined yet."""
    READY = "ready"
    """Its node has joined the engine."""
    RELEASED = "released"
    """The provider was asked to take the machine back, or is about to be."""
    DOWN = "down"
    """The provider has it no more."""


@final
@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """One node, from when it was asked for until it is gone. The times are the record; the state follows from them.

    Attributes:
        name: names it and its machine for ever, at the provider and on the engine.
        slot: which of its type's slots it fills, such as ``v100-2``; the scheduler's name of it.
        node_type: its type, a name of the cluster's definition.
        asked_for: uid of the job for which it was asked; None where it is one that is kept anyway.
        asked_time_s: when it was asked for, seconds since 1970 UTC.
        up_time_s: when the provider was first seen to have its machine.
        ready_time_s: when its node was first seen on the engine.
        idle_time_s: since when no job has it; None while one does.
        released_time_s: when it was decided to give it back.
        down_time_s: when the provider was first seen without it; when it last was seen with it, where nobody looked for
            longer.
        failed_time_s: when it was seen that it will not serve, or serves no more.
        seen_time_s: when the provider was last seen to have its machine, to `SEEN_S`.
        reason: why it failed, or was released, in words.
        machine: what it is, in words, such as "n1-standard-8 + 2 x NVIDIA_TESLA_V100".
        usd_per_hour: what one costs in an hour, as a decimal, by what was known when it was asked for; None where it is
            unpriced.
        price_source: where that price comes from.
        simulated: whether nothing is owed for it.
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
        """Returns when a node of which the provider has no machine went, as far as it is billed: when it was last seen.

        Args:
            now_s: when it was not seen, seconds since 1970 UTC; this, where it was seen shortly before.
        """
        if self.seen_time_s is None or now_s - self.seen_time_s <= UNSEEN_S:
            return now_s
        return max(self.seen_time_s, self.ready_time_s or 0.0)

    @property
    def state(self) -> NodeState:
        """How far it is."""
        if self.down_time_s is not None:
            return NodeState.DOWN
        if self.released_time_s is not None:
            return NodeState.RELEASED
        if self.ready_time_s is not None:
            return NodeState.READY
        return NodeState.ASKED if self.up_time_s is None else NodeState.UP

    @property
    def has_never_served(self) -> bool:
        """Whether it failed before its node was ready."""
        return self.failed_time_s is not None and self.ready_time_s is None
