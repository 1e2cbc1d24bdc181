"""Builds the environment variables of a replica's program: few of the node's, and all of the contract's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lockstep.heartbeat import HEARTBEAT_VARIABLE
from lockstep.jobs.running.orders import SPOOL_VARIABLE, ReplicaOrder
from lockstep.jobs.running.packages import Code
from lockstep.spools import HEARTBEAT_SOCKET
from lockstep.topology import Accelerators, Outputs, Task, Topology, framework_env, virtual_devices_env

CREDENTIALS: Final = frozenset(
    {
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
    }
)
"""The node's variables that give a job's program access to its bucket. A server does not get them."""

PASSED_ON: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        # the node's GPUs that the engine granted
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        *CREDENTIALS,
    }
)
"""The node's variables that a program may see. All others, such as the engine's token, stay with the runner."""


def topology_of(order: ReplicaOrder) -> Topology:
    """Returns the topology that the replica's program sees."""
    accelerators = None
    if order.accelerator_type is not None:
        accelerators = Accelerators(
            count=order.accelerator_count, type=order.accelerator_type, simulated=order.simulated
        )
    return Topology(
        cluster=order.cluster,
        task=Task(role=order.role, index=order.index, trial=order.trial),
        job=order.job,
        managed=True,
        outputs=Outputs(
            model_dir=order.model_dir, checkpoint_dir=order.checkpoint_dir, tensorboard_dir=order.tensorboard_dir
        ),
        accelerators=accelerators,
    )


def program_environment(
    order: ReplicaOrder, *, code: Sequence[Code], node: Mapping[str, str], environment: Path | None = None
) -> dict[str, str]:
    """Returns the complete environment variables of a replica's program.

    Args:
        order: the order of the replica; its own variables and secrets override all others.
        code: the replica's packages; the first one is searched first.
        environment: the folder of the program's Python environment; None if it uses the node's.
        node: the environment variables of the runner.
    """
    passed_on = PASSED_ON if order.server is None else PASSED_ON - CREDENTIALS
    env = {name: value for name, value in node.items() if name in passed_on or name.startswith("LC_")}
    env[SPOOL_VARIABLE] = order.spool
    env[HEARTBEAT_VARIABLE] = str(Path(order.spool) / HEARTBEAT_SOCKET)
    env["PYTHONFAULTHANDLER"] = "1"  # shows the stacks if the program crashes or is stuck
    if environment is not None:
        env["VIRTUAL_ENV"] = str(environment)
        env["PATH"] = os.pathsep.join([str(environment / "bin"), *([env["PATH"]] if "PATH" in env else [])])
    env["PYTHONUNBUFFERED"] = "1"  # a line reaches the log when it is printed, not when a buffer is full
    if code:
        env["PYTHONPATH"] = os.pathsep.join(
            dict.fromkeys(str(path) for package in code for path in package.module_path)
        )
    topology = topology_of(order)
    env.update({**framework_env(topology), **topology.to_env()})
    if order.simulated:
        env.update(virtual_devices_env(order.accelerator_count))
    elif order.accelerator_type is None:
        # A machine type without accelerators gets none, even if the node has some.
        env.update({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""})
    env.update(order.environment)
    env.update(order.secrets)
    return env
