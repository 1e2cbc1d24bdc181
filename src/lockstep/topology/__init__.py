"""Who is in the job, at which addresses, and which of them this process is.

`Topology` is the one seam between the training library and the job service: the service writes it into a replica's
environment with `Topology.to_env`, the library reads it back with `Topology.from_env`. A person may set the same
variables by hand (``TF_CONFIG`` alone is enough), other launchers set variables of their own
(`lockstep.topology.launchers`), and a script without any of them is a job of one process.
"""

from __future__ import annotations

from lockstep.topology.frameworks import FRAMEWORK_VARIABLES, framework_env
from lockstep.topology.job import (
    ACCELERATORS,
    CHECKPOINT_DIR,
    CHIEF_ROLES,
    CLUSTER_SPEC,
    CLUSTER_TOKEN,
    MODEL_DIR,
    ROLES,
    TENSORBOARD_DIR,
    TF_CONFIG,
    Accelerators,
    ClusterSpec,
    Outputs,
    Task,
    Topology,
    virtual_devices_env,
)
from lockstep.topology.launchers import PLACE_VARIABLES

__all__ = [
    "ACCELERATORS",
    "CHECKPOINT_DIR",
    "CHIEF_ROLES",
    "CLUSTER_SPEC",
    "CLUSTER_TOKEN",
    "FRAMEWORK_VARIABLES",
    "MODEL_DIR",
    "PLACE_VARIABLES",
    "ROLES",
    "TENSORBOARD_DIR",
    "TF_CONFIG",
    "Accelerators",
    "ClusterSpec",
    "Outputs",
    "Task",
    "Topology",
    "framework_env",
    "virtual_devices_env",
]
