"""Machines that come and go: what a cluster may have, the ledger of what it had, and what is done next. Pure."""

from lockstep.jobs.provisioning.decisions import Ask, Change, Mark, Plan, Sighting, StockOut, plan, stock_outs
from lockstep.jobs.provisioning.definition import ClusterDefinition, NodeType, Provider, parse_cluster
from lockstep.jobs.provisioning.ledger import NodeRecord, NodeState

__all__ = [
    "Ask",
    "Change",
    "ClusterDefinition",
    "Mark",
    "NodeRecord",
    "NodeState",
    "NodeType",
    "Plan",
    "Provider",
    "Sighting",
    "StockOut",
    "parse_cluster",
    "plan",
    "stock_outs",
]
