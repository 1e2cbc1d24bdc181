"""The topology of a job: its members, their addresses, and which member this process is.

`Topology` is the only interface between the training library and the job service. The service writes it to a replica's
environment with `Topology.to_env`, and the library reads it with `Topology.from_env`. You can also set the same
variables by hand (``TF_CONFIG`` is enough). Other launchers set their own variables (`lockstep.topology.launchers`). A
script without any of these variables is a job of one process.
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
