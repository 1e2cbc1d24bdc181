"""Decides what to do next about a cluster's machines.

The decisions follow from the ledger, from what the provider and the engine report, and from the slots that jobs hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import final

from lockstep.jobs.provisioning.definition import ClusterDefinition
from lockstep.jobs.provisioning.ledger import SEEN_S, NodeRecord, NodeState


@final
@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the provider and the engine reported at one moment.

    Attributes:
        time_s: the time when the query of the provider began, in seconds since 1970 UTC.
        machines: the names of the machines that the provider has for this cluster.
        joined: the names of the nodes that have joined the engine; None if the engine did not answer.
        refused: the provider's reasons, by name, for the machines that it refused since the last query.
        explanations: the provider's explanations, by name, for machines that are not up yet, if it gives any.
        unanswered: the names of the machines for which the provider has not said yet whether it has room.
    """

    time_s: float
    machines: frozenset[str]
    joined: frozenset[str] | None = None
    refused: Mapping[str, str]
    explanations: Mapping[str, str] = field(default_factory=dict[str, str])
    unanswered: frozenset[str] = frozenset()


@final
@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A node to request.

    Attributes:
        slot: the slot that the node fills.
        node_type: the node's type.
        asked_for: the uid of the job that waits for the node; None if no job does.
    """

    slot: str
    node_type: str
    asked_for: str | None


@final
@dataclass(frozen=True, kw_only=True)
class RecordChange:
    """Fields to set in a node's record.

    Attributes:
        name: the name of the node.
        changes: the new values, by the names of the record's fields.
    """

    name: str
    changes: Mapping[str, float | str | None]


Change = NodeRequest | RecordChange


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The changes to record in the ledger, and the machines to remove.

    Attributes:
        requests: the nodes to request.
        record_changes: the changes to nodes that are in the ledger.
        strays: the machines of this cluster to remove: those that the ledger does not have, or records as down.
    """

    requests: tuple[NodeRequest, ...] = ()
    record_changes: tuple[RecordChange, ...] = ()
    strays: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class StockOut:
    """A node type that was recently unavailable.

    Attributes:
        until_s: the time from which it is requested again, in seconds since 1970 UTC.
        reason: why it was unavailable, as the provider said.
    """

    until_s: float
    reason: str


def stock_outs(nodes: Sequence[NodeRecord], *, definition: ClusterDefinition, now_s: float) -> dict[str, StockOut]:
    """Returns the node types that were recently unavailable and are not requested again yet.

    Args:
        nodes: the records of the ledger.
        definition: the cluster's definition.
        now_s: the current time, in seconds since 1970 UTC.
    """
    found: dict[str, StockOut] = {}
    for node in nodes:
        if node.has_never_served and node.failed_time_s is not None:
            until_s = node.failed_time_s + definition.retry_after_s
            known = found.get(node.node_type)
            if until_s > now_s and (known is None or known.until_s < until_s):
                found[node.node_type] = StockOut(until_s=until_s, reason=node.reason)
    return found


def plan(
    nodes: Sequence[NodeRecord],
    *,
    definition: ClusterDefinition,
    held: Mapping[str, str],
    observation: Observation,
    now_s: float,
) -> Plan:
    """Decides what to do next about the cluster's machines.

    The observation has to be older than the reading of the ledger. A machine is recorded before it is requested, so a
    machine that the ledger does not have is a stray.

    Args:
        nodes: the records of all nodes that are not down, and of those that failed recently.
        definition: the cluster's definition.
        held: the slots that jobs hold, each with the uid of its job.
        observation: what the provider and the engine reported.
        now_s: the current time, in seconds since 1970 UTC.
    """
    active = [node for node in nodes if node.state is not NodeState.DOWN]
    kept = frozenset(definition.kept_slots())
    record_changes: list[RecordChange] = []
    for node in active:
        changes = _changes(node, definition=definition, observation=observation, now_s=now_s)
        if node.state is not NodeState.RELEASED and "released_time_s" not in changes:
            is_kept, is_held = node.slot in kept, node.slot in held
            changes |= _idle_changes(node, definition=definition, is_kept=is_kept, is_held=is_held, now_s=now_s)
        if changes:
            record_changes.append(RecordChange(name=node.name, changes=changes))
    known = {node.name for node in active}
    taken = {node.slot for node in active}
    out = stock_outs(nodes, definition=definition, now_s=now_s)
    types = dict(definition.slots())
    wanted: dict[str, str | None] = {**dict.fromkeys(definition.kept_slots()), **held}
    requests = [
        NodeRequest(slot=slot, node_type=types[slot], asked_for=uid)
        for slot, uid in wanted.items()
        if slot in types and slot not in taken and types[slot] not in out
    ]
    return Plan(
        requests=tuple(requests),
        record_changes=tuple(record_changes),
        strays=tuple(sorted(observation.machines - known)),
    )


def _changes(
    node: NodeRecord, *, definition: ClusterDefinition, observation: Observation, now_s: float
) -> dict[str, float | str | None]:
    """Returns the changes to the record of a node that is not down, according to the observation."""
    is_there = node.name in observation.machines
    seen: dict[str, float | str | None] = {}
    if is_there and (node.seen_time_s is None or observation.time_s - node.seen_time_s >= SEEN_S):
        seen = {"seen_time_s": observation.time_s}
    if node.state is NodeState.RELEASED:
        assert node.released_time_s is not None
        if is_there or observation.time_s <= node.released_time_s:
            return seen
        gone_s = node.gone_since_s(now_s)
        between = _between(gone_s, now_s)
        return {"down_time_s": gone_s, **({"reason": node.reason + between} if between else {})}
    refused = observation.refused.get(node.name)
    if refused is not None and not is_there:
        return _failed(refused, now_s=now_s)
    has_joined = observation.joined is not None and node.name in observation.joined
    changes = seen
    if node.up_time_s is None and (is_there or has_joined):
        changes["up_time_s"] = now_s
    elif node.up_time_s is not None and not is_there and node.name not in observation.unanswered:
        gone_s = node.gone_since_s(now_s)
        return {**_failed("its machine is gone" + _between(gone_s, now_s), now_s=gone_s), "down_time_s": gone_s}
    if node.ready_time_s is None:
        if has_joined:
            changes["ready_time_s"] = now_s
        elif observation.joined is not None and observation.time_s - node.asked_time_s > definition.join_timeout_s:
            what = "its node did not join" if is_there else "its machine did not come up"
            words = observation.explanations.get(node.name)
            why = f"; {words}" if words else ""
            changes |= _failed(f"{what} within {definition.join_timeout_s:.0f} s{why}", now_s=now_s)
    elif observation.joined is not None and not has_joined:
        changes |= _failed("its node left the engine", now_s=now_s)
    return changes


def _between(seen_s: float, now_s: float) -> str:
    """Returns the period in which a machine went, which is billed until its start; "" if the time is known."""
    if seen_s == now_s:
        return ""
    seen, now = (datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="seconds") for time_s in (seen_s, now_s))
    return f", between {seen} and {now}"


def _failed(reason: str, *, now_s: float) -> dict[str, float | str | None]:
    return {"failed_time_s": now_s, "released_time_s": now_s, "reason": reason}


def _idle_changes(
    node: NodeRecord, *, definition: ClusterDefinition, is_kept: bool, is_held: bool, now_s: float
) -> dict[str, float | str | None]:
    """Returns the changes to a node's record that follow from whether a job holds it."""
    if is_held:
        return {} if node.idle_time_s is None else {"idle_time_s": None}
    if node.idle_time_s is None and node.ready_time_s is not None:
        return {"idle_time_s": now_s}
    if is_kept:
        return {}
    if node.ready_time_s is None or node.idle_time_s is None:
        return {"released_time_s": now_s, "reason": "no job waits for it any more"}
    if now_s - node.idle_time_s >= definition.idle_timeout_s:
        return {"released_time_s": now_s, "reason": f"idle for {definition.idle_timeout_s:.0f} s"}
    return {}
