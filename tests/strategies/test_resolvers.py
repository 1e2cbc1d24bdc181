"""Cluster resolvers by name: each reads its own source alone."""

import json

import pytest

from lockstep.errors import ConfigError
from lockstep.strategies.resolvers import (
    JaxClusterResolver,
    KubernetesClusterResolver,
    MPIClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    resolve_topology,
)
from lockstep.topology import Topology

ENV = {
    "TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}),
    "JAX_COORDINATOR_ADDRESS": "j:1",
    "JAX_NUM_PROCESSES": "3",
    "JAX_PROCESS_ID": "2",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "t",
    "PMI_RANK": "4",
    "PMI_SIZE": "5",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "n[1-6]",
    "JOB_COMPLETION_INDEX": "1",
}


@pytest.mark.parametrize(
    ("kind", "process_id", "num_processes"),
    [
        (TFConfigClusterResolver, 1, 2),
        (JaxClusterResolver, 2, 3),
        (TorchrunClusterResolver, 3, 4),
        (MPIClusterResolver, 4, 5),
        (SlurmClusterResolver, 5, 6),
        (KubernetesClusterResolver, 1, 3),
    ],
)
def test_each_reads_its_own_source(kind, process_id, num_processes):
    topology = resolve_topology(kind(env=ENV))
    assert (topology.process_id, topology.num_processes) == (process_id, num_processes)
    with pytest.raises(ConfigError, match="not set"):
        kind(env={}).resolve()


def test_slurm_takes_a_port():
    assert (
        SlurmClusterResolver(port=99, env={**ENV, "JAX_COORDINATOR_ADDRESS": "n1"}).resolve().coordinator_address
        == "n1:99"
    )


def test_the_program_s_own_word():
    cluster = {"worker": ["a:1", "b:2"]}
    topology = SimpleClusterResolver(cluster, task_type="worker", task_id=1).resolve()
    assert topology.synchronous_addresses == ("a:1", "b:2")
    assert topology.process_id == 1
    with pytest.raises(ConfigError, match="did you mean 'worker'"):
        SimpleClusterResolver({"wroker": ["a:1"]}, task_type="wroker", task_id=0)


def test_a_topology_is_its_own_resolver(monkeypatch):
    topology = Topology.of_processes(num_processes=2, process_id=0, coordinator_address="a:1")
    assert resolve_topology(topology) is topology
    monkeypatch.setenv("TF_CONFIG", ENV["TF_CONFIG"])
    assert resolve_topology(None).process_id == 1
