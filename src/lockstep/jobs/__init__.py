"""Jobs as pure data and decisions: what is asked for, the states, the machines, the gang, the bill, filters, the queue.

Nothing here reads a clock, a file or a network (but for the packaged machine catalogue): the service and the command
line pass everything in. ``lockstep.jobs.orders`` holds the messages between the service, the engine and
a replica's runner. What this package exports is imported when it is first used: a runner starts with each replica, and
needs little of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstep.jobs.billing import Bill, BillLine, ReplicaUsage, bill
    from lockstep.jobs.documents import JobConfig, JobRequest, parse_config, parse_job, parse_training_input
    from lockstep.jobs.fields import JobId, Labels
    from lockstep.jobs.filters import parse_filter, parse_operation_filter
    from lockstep.jobs.gangs import Gang, Replica, describe_machine, resolve
    from lockstep.jobs.hyperparameters import HyperparameterSpec, ParameterSpec
    from lockstep.jobs.machines import Accelerator, Catalogue, MachineType, load_catalogue, parse_catalogue
    from lockstep.jobs.predicates import Predicate
    from lockstep.jobs.spec import (
        AcceleratorConfig,
        AcceleratorType,
        DiskConfig,
        EncryptionConfig,
        OwnInput,
        ReplicaConfig,
        ScaleTier,
        Scheduling,
        TrainingInput,
        ignored,
        unsupported,
    )
    from lockstep.jobs.states import TERMINAL, TRANSITIONS, JobEvent, JobState, allowed_events, diagram, next_state

__all__ = [
    "TERMINAL",
    "TRANSITIONS",
    "Accelerator",
    "AcceleratorConfig",
    "AcceleratorType",
    "Bill",
    "BillLine",
    "Catalogue",
    "DiskConfig",
    "EncryptionConfig",
    "Gang",
    "HyperparameterSpec",
    "JobConfig",
    "JobEvent",
    "JobId",
    "JobRequest",
    "JobState",
    "Labels",
    "MachineType",
    "OwnInput",
    "ParameterSpec",
    "Predicate",
    "Replica",
    "ReplicaConfig",
    "ReplicaUsage",
    "ScaleTier",
    "Scheduling",
    "TrainingInput",
    "allowed_events",
    "bill",
    "describe_machine",
    "diagram",
    "ignored",
    "load_catalogue",
    "next_state",
    "parse_catalogue",
    "parse_config",
    "parse_filter",
    "parse_job",
    "parse_operation_filter",
    "parse_training_input",
    "resolve",
    "unsupported",
]

_LAZY: Final = {
    "Accelerator": "lockstep.jobs.machines",
    "AcceleratorConfig": "lockstep.jobs.spec",
    "AcceleratorType": "lockstep.jobs.spec",
    "Bill": "lockstep.jobs.billing",
    "BillLine": "lockstep.jobs.billing",
    "Catalogue": "lockstep.jobs.machines",
    "DiskConfig": "lockstep.jobs.spec",
    "EncryptionConfig": "lockstep.jobs.spec",
    "Gang": "lockstep.jobs.gangs",
    "HyperparameterSpec": "lockstep.jobs.hyperparameters",
    "JobConfig": "lockstep.jobs.documents",
    "JobEvent": "lockstep.jobs.states",
    "JobId": "lockstep.jobs.fields",
    "JobRequest": "lockstep.jobs.documents",
    "JobState": "lockstep.jobs.states",
    "Labels": "lockstep.jobs.fields",
    "MachineType": "lockstep.jobs.machines",
    "OwnInput": "lockstep.jobs.spec",
    "ParameterSpec": "lockstep.jobs.hyperparameters",
    "Predicate": "lockstep.jobs.predicates",
    "Replica": "lockstep.jobs.gangs",
    "ReplicaConfig": "lockstep.jobs.spec",
    "ReplicaUsage": "lockstep.jobs.billing",
    "ScaleTier": "lockstep.jobs.spec",
    "Scheduling": "lockstep.jobs.spec",
    "TERMINAL": "lockstep.jobs.states",
    "TRANSITIONS": "lockstep.jobs.states",
    "TrainingInput": "lockstep.jobs.spec",
    "allowed_events": "lockstep.jobs.states",
    "bill": "lockstep.jobs.billing",
    "describe_machine": "lockstep.jobs.gangs",
    "diagram": "lockstep.jobs.states",
    "ignored": "lockstep.jobs.spec",
    "load_catalogue": "lockstep.jobs.machines",
    "next_state": "lockstep.jobs.states",
    "parse_catalogue": "lockstep.jobs.machines",
    "parse_config": "lockstep.jobs.documents",
    "parse_filter": "lockstep.jobs.filters",
    "parse_job": "lockstep.jobs.documents",
    "parse_operation_filter": "lockstep.jobs.filters",
    "parse_training_input": "lockstep.jobs.documents",
    "resolve": "lockstep.jobs.gangs",
    "unsupported": "lockstep.jobs.spec",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lockstep.jobs' has no attribute {name!r}")
