"""Lockstep's own routes for the nodes of the cluster: those that there are, who uses them, and those that ended."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import Query

from lockstep.errors import ConfigError, EngineError
from lockstep.jobs.provisioning import NodeRecord
from lockstep.jobs.running.states import TERMINAL
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import EngineNodeForm, NodeForm, NodeListForm, NodePageForm, NodeUseForm
from lockstep.service.api.pages import PageSize, PageToken, list_answer
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.control.job_inputs import order_of

MAX_ENGINE_NODES: Final = 1000
"""The maximum number of nodes of a fixed set in a response."""
MAX_USES: Final = 20
"""The maximum number of replicas that are named for one node."""

router = make_router()

Uses = Mapping[str, Sequence[NodeUseForm]]
"""The replicas on nodes, by the scheduler's name of the node."""


@router.get("/v1/nodes")
@requires_scope(Scope.OPERATOR)
def nodes(context: Context, everything: Annotated[bool, Query(alias="all")] = False) -> NodeListForm:
    """Returns nodes of the ledger: those that exist, are requested, or failed recently; with ``all``, every node.

    Where machines are not requested and released, these are none, and ``engineNodes`` are the nodes that the engine
    has.
    """
    uses, provisioner = _uses(context), context.provisioner
    if provisioner is None:
        engine_nodes = _engine_nodes(context, uses=uses)
        return {"cluster": None, "nodes": [], "engineNodes": engine_nodes[:MAX_ENGINE_NODES]}
    found = provisioner.nodes() if not everything else context.nodes.between(since_s=0.0, until_s=time.time() + 1.0)
    kinds = {name: kind.describe(context.catalogue) for name, kind in provisioner.definition.node_types.items()}
    return {
        "cluster": provisioner.definition.name,
        "nodes": [_resource(node, machine=kinds.get(node.node_type, node.node_type), uses=uses) for node in found],
        "engineNodes": [],
    }


@router.get("/v1/nodes/ended")
@requires_scope(Scope.OPERATOR)
def ended_nodes(context: Context, page_size: PageSize = 0, page_token: PageToken = "") -> NodePageForm:
    """Returns the nodes of the ledger that the provider no longer has, those that were requested last first."""
    return list_answer(
        "nodes",
        read=context.nodes.page_ended,
        holds=None,
        position=lambda node: (node.asked_time_s, node.name),
        show=lambda found: [_resource(node, machine=node.machine or node.node_type, uses={}) for node in found],
        size=page_size,
        token=page_token,
    )


def _uses(context: ServiceContext) -> Uses:
    uses: defaultdict[str, list[NodeUseForm]] = defaultdict(list)
    for job in context.jobs.placed_jobs():
        try:
            order = order_of(job)
        except ConfigError:  # of another version of Lockstep
            continue
        if order is None or job.state in TERMINAL:
            continue
        for replica in order.replicas:
            if len(uses[replica.node]) < MAX_USES:
                use: NodeUseForm = {
                    "project": job.project,
                    "jobId": job.job_id,
                    "kind": job.kind.value,
                    "replica": replica.name,
                }
                uses[replica.node].append(use)
    return uses


def _engine_nodes(context: ServiceContext, *, uses: Uses) -> list[EngineNodeForm]:
    try:
        found = context.cluster.nodes()
    except EngineError:  # the service's problems say it
        return []
    return [
        {
            "name": node.name,
            "nodeType": node.node_type,
            "up": node.is_up,
            "resources": dict(node.resources),
            "usedBy": list(uses.get(node.name, ())),
        }
        for node in found
    ]


def _resource(node: NodeRecord, *, machine: str, uses: Uses) -> NodeForm:
    def shown(time_s: float | None) -> str | None:
        return None if time_s is None else timestamp(time_s)

    is_there = node.released_time_s is None and node.down_time_s is None and node.failed_time_s is None
    return {
        "name": node.name,
        "slot": node.slot,
        "nodeType": node.node_type,
        "machine": machine,
        "state": node.state.value,
        "reason": node.reason,
        "readySeconds": None if node.ready_time_s is None else node.ready_time_s - node.asked_time_s,
        "askedTime": shown(node.asked_time_s),
        "upTime": shown(node.up_time_s),
        "readyTime": shown(node.ready_time_s),
        "idleTime": shown(node.idle_time_s),
        "releasedTime": shown(node.released_time_s),
        "downTime": shown(node.down_time_s),
        "failedTime": shown(node.failed_time_s),
        "usdPerHour": node.usd_per_hour,
        "priceSource": node.price_source,
        "simulated": node.simulated,
        "usedBy": list(uses.get(node.slot, ())) if is_there else [],
    }
