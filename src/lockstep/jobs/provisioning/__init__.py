"""Manages machines that come and go: the cluster's definition, the ledger, and the next decisions. Pure functions."""

from lockstep.jobs.provisioning.decisions import (
    Change,
    NodeRequest,
    Observation,
    Plan,
    RecordChange,
    StockOut,
    plan,
    stock_outs,
)
from lockstep.jobs.provisioning.definition import ClusterDefinition, NodeType, Provider, parse_cluster
from lockstep.jobs.provisioning.ledger import NodeRecord, NodeState

__all__ = [
    "Change",
    "ClusterDefinition",
    "NodeRecord",
    "NodeRequest",
    "NodeState",
    "NodeType",
    "Observation",
    "Plan",
    "Provider",
    "RecordChange",
    "StockOut",
    "parse_cluster",
    "plan",
    "stock_outs",
]
