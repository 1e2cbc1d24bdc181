"""Processes of a cluster that are on one machine do not all compute on all of its cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from lockstep.parameter_server import ParameterServerStrategy
from lockstep.parameter_server.cores import THREADS_VARIABLES, num_threads
from lockstep.topology import CLUSTER_TOKEN, Task, Topology

CLUSTER: dict[str, tuple[str, ...]] = {
    "chief": ("10.0.0.1:1",),
    "worker": ("10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:2"),
    "ps": ("10.0.0.1:4", "[fd00::1]:4"),
}


@pytest.mark.parametrize(
    ("role", "index", "num_cores", "expected"),
    [
        pytest.param("worker", 1, 16, 5, id="with two others"),
        pytest.param("ps", 0, 2, 1, id="at least one"),
        pytest.param("worker", 2, 16, None, id="alone"),
        pytest.param("ps", 1, 16, None, id="alone by another protocol"),
        pytest.param("chief", 0, 16, None, id="coordinator"),
    ],
)
def test_the_cores_are_shared_by_those_who_compute(role: str, index: int, num_cores: int, expected: int | None) -> None:
    topology = Topology(cluster=CLUSTER, task=Task(role=role, index=index))
    assert num_threads(topology, num_cores=num_cores) == expected


def test_a_worker_asks_for_its_devices_with_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CLUSTER_TOKEN, "t" * 64)
    seen: list[str | None] = []

    def note() -> list[jax.Device]:
        seen.append(os.environ.get(THREADS_VARIABLES[0]))
        return jax.local_devices()[:1]

    monkeypatch.setattr("lockstep.parameter_server.strategy.local_devices", note)
    many: dict[str, tuple[str, ...]] = {**CLUSTER, "worker": tuple(f"10.0.0.1:{port}" for port in range(5, 999))}
    ParameterServerStrategy(Topology(cluster=many, task=Task(role="worker")))
    assert seen == ["1"]


PROGRAM = """
import os, pathlib
from lockstep.parameter_server.cores import shared_cores
from lockstep.topology import Task, Topology

cluster = {"chief": ("h:1",), "worker": tuple(f"h:{port}" for port in range(2, 1000)), "ps": ("h:1000",)}
with shared_cores(Topology(cluster=cluster, task=Task(role="worker"))):
    import jax
    jax.block_until_ready(jax.numpy.ones((256, 256)) @ jax.numpy.ones((256, 256)))
names = [path.joinpath("comm").read_text().strip() for path in pathlib.Path("/proc/self/task").iterdir()]
print(sum("XLAEigen" in name for name in names), os.environ.get("PJRT_NPROC"))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted by /proc")
@pytest.mark.parametrize("chosen", [None, pytest.param("3", marks=pytest.mark.heavy)])
def test_xla_has_as_many_threads_as_it_is_to_have(chosen: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name not in THREADS_VARIABLES}
    env |= {} if chosen is None else {"NPROC": chosen}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["1" if chosen is None else chosen, "None"], found.stderr


AT_ONCE = """
from lockstep.parameter_server.cores import shared_cores
from lockstep.topology import Task, Topology

with shared_cores(Topology(cluster={"chief": ("h:1",), "worker": ("h:2",), "ps": ("h:3",)}, task=Task(role=ROLE))):
    import jax
    large = jax.numpy.ones((2048, 2048))
    print((large @ large).is_ready(), *{device.platform for device in jax.devices()})
"""


@pytest.mark.parametrize(
    ("role", "platforms", "expected"),
    [("ps", "cuda,cpu", "True cpu"), pytest.param("worker", "cpu", "False cpu", marks=pytest.mark.heavy)],
)
def test_a_server_computes_on_the_processor_and_in_the_thread_that_answers(
    role: str, platforms: str, expected: str
) -> None:
    program, env = AT_ONCE.replace("ROLE", repr(role)), {**os.environ, "JAX_PLATFORMS": platforms}
    found = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == expected, found.stderr
