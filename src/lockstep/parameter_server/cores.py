"""Gives a process its part of a machine's cores if other processes of its cluster compute on the same machine.

XLA starts as many threads as the machine has cores, and splits each larger operation into that many parts. If a worker
and a server do so on the same cores, each part waits for a core that the other process is using. On two cores, steps
took between one and five times as long, by chance. For the same reason, a server computes in the thread that answers
requests: if it handed each update to an XLA thread, it would wait for that thread to get a core, which takes ten times
as long as a small update.
"""

# JAX is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import jax

from lockstep.topology import Topology

THREADS_VARIABLES: Final = ("PJRT_NPROC", "NPROC")
"""The variables that tell XLA how many threads its CPU client has. The first one is specific to XLA."""
_COMPUTES: Final = ("worker", "ps")


def num_threads(topology: Topology, *, num_cores: int) -> int | None:
    """Returns how many threads XLA should have in this process; None for XLA's own default.

    Args:
        topology: the addresses of all processes. Processes with the same host in their addresses share a machine.
        num_cores: the number of cores of the machine.
    """
    task = topology.task
    if task.role not in _COMPUTES:
        return None  # the coordinator computes while the others wait for it
    own = _host(topology.cluster[task.role][task.index])
    num_here = sum(_host(address) == own for role in _COMPUTES for address in topology.cluster[role])
    return None if num_here == 1 else max(1, num_cores // num_here)


@contextmanager
def shared_cores(topology: Topology) -> Generator[None]:
    """Limits JAX's CPU client, if it is created within, to this process's part of the cores.

    A number of threads that is already set in the environment is kept. A server gets no other devices, and computes in
    the thread that requests the computation. Has no effect if JAX has already created its devices.
    """
    if topology.task.role == "ps":
        jax.config.update("jax_platforms", "cpu")  # otherwise it would reserve a part of each accelerator for nothing
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    share = num_threads(topology, num_cores=_num_cores())
    if share is None or any(name in os.environ for name in THREADS_VARIABLES):
        yield
        return
    name = THREADS_VARIABLES[0]
    os.environ[name] = str(share)
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
