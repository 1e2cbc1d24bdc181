"""Jobs as pure data and decisions: what is asked for, the states, the machines, the gang, the bill, filters, the queue.

Nothing here reads a clock, a file or a network (but for the packaged machine catalogue): the service and the command
line pass everything in. ``lockstep.jobs.orders`` holds the messages between the service, the engine and
a replica's runner.
"""

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
