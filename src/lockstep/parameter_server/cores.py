"""A process's share of its machine's cores, where other processes of its cluster compute on the same ones.

XLA takes as many threads as the machine has cores, and cuts each larger operation into that many parts. Where a worker
and a server do so on the same cores, each part waits for a core that the other has: on two of them, steps took from
once to five times as long, by chance. For the same reason a server computes in the thread that answers: one that hands
each update to a thread of XLA's waits until that one has a core, for ten times as long as a small update takes.
"""

# JAX is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import jax

from lockstep.topology import Topology

THREADS_VARIABLES: Final = ("PJRT_NPROC", "NPROC")
"""By which XLA is told how many threads its CPU client has: the first one is its own."""
_COMPUTES: Final = ("worker", "ps")


def num_threads(topology: Topology, *, num_cores: int) -> int | None:
    """Returns how many threads XLA is to have in this process; None for as many as it takes by itself.

    Args:
        topology: who is where; processes whose addresses are of one host are on one machine.
        num_cores: the machine's.
    """
    task = topology.task
    if task.role not in _COMPUTES:
        return None  # the coordinator computes while the others wait for it
    own = _host(topology.cluster[task.role][task.index])
    num_here = sum(_host(address) == own for role in _COMPUTES for address in topology.cluster[role])
    return None if num_here == 1 else max(1, num_cores // num_here)


@contextmanager
def shared_cores(topology: Topology) -> Generator[None]:
    """Within, JAX's CPU client is made with this process's share of the cores, unless somebody has chosen another one.

    A server has no other devices, and computes in the thread that asks for it. Does nothing where JAX has its devices
    already.
    """
    if topology.task.role == "ps":
        jax.config.update("jax_platforms", "cpu")  # else it would take a part of each accelerator for nothing
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
