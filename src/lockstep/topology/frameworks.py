"""Sets the environment variables with which unmodified scripts of other frameworks find each other in a job.

Sources of the names: PyTorch ("torchrun: Environment Variables"), JAX (``jax.distributed.initialize``, and the
variables that Kubeflow's trainer sets for JAX), Keras (``keras.distribution.initialize``). TensorFlow reads
``TF_CONFIG``.
"""

from __future__ import annotations

from typing import Final

from lockstep.topology.job import Topology

FRAMEWORK_VARIABLES: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "KERAS_DISTRIBUTION_JOB_ADDRESSES",
    "KERAS_DISTRIBUTION_NUM_PROCESSES",
    "KERAS_DISTRIBUTION_PROCESS_ID",
)
"""The names of the variables that `framework_env` returns."""


def framework_env(topology: Topology) -> dict[str, str]:
    """Returns the variables from which PyTorch, JAX and Keras learn about a job of several processes.

    Args:
        topology: the job, and this process's place in it.

    Returns:
        The variables by name. Empty for a job of one process, and for a process that does not train in step (a
        parameter server or an evaluator).
    """
    if topology.num_processes == 1 or topology.task.role in ("ps", "evaluator"):
        return {}
    first, rank, count = topology.synchronous_addresses[0], str(topology.process_id), str(topology.num_processes)
    host, _, port = first.rpartition(":")
    return {
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "RANK": rank,
        "WORLD_SIZE": count,
        # Each replica has its own machine and one process.
        "GROUP_RANK": rank,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "JAX_COORDINATOR_ADDRESS": first,
        "JAX_NUM_PROCESSES": count,
        "JAX_PROCESS_ID": rank,
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(topology.synchronous_addresses),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
        "KERAS_DISTRIBUTION_PROCESS_ID": rank,
    }
