"""Lockstep's own route for the nodes of a cluster whose machines are requested and released."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Query

from lockstep.jobs.provisioning import NodeRecord
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import NodeForm, NodeListForm
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router

router = make_router()


@router.get("/v1/nodes")
@requires_scope(Scope.OPERATOR)
def nodes(context: Context, everything: Annotated[bool, Query(alias="all")] = False) -> NodeListForm:
    """Returns nodes of the ledger: those that exist, are requested, or failed recently; with ``all``, every node."""
    provisioner = context.provisioner
    if provisioner is None:
        return {"cluster": None, "nodes": []}
    found = provisioner.nodes() if not everything else context.nodes.between(since_s=0.0, until_s=time.time() + 1.0)
    kinds = {name: kind.describe(context.catalogue) for name, kind in provisioner.definition.node_types.items()}
    return {
        "cluster": provisioner.definition.name,
        "nodes": [_resource(node, machine=kinds.get(node.node_type, node.node_type)) for node in found],
    }


def _resource(node: NodeRecord, *, machine: str) -> NodeForm:
    def shown(time_s: float | None) -> str | None:
        return None if time_s is None else timestamp(time_s)

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
        "releasedTime": shown(node.released_time_s),
        "downTime": shown(node.down_time_s),
        "failedTime": shown(node.failed_time_s),
    }
