"""Cluster resolvers by name: each reads its own source alone."""

import json

import pytest

from lockstep.errors import ConfigError
from lockstep.strategies.peers.resolvers import (
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


@pytest.mark.parametrize(
    ("cluster", "task_type", "task_id", "expected"),
    [
        ({"chief": ["a:1"], "worker": ["b:2"]}, "chief", 0, True),
        ({"chief": ["a:1"], "worker": ["b:2"]}, "worker", 0, False),
        ({"worker": ["a:1", "b:2"]}, "worker", 0, True),
        ({"worker": ["a:1", "b:2"]}, "worker", 1, False),
    ],
)
def test_the_guides_of_tf_distribute_find_their_chief(cluster, task_type, task_id, expected):
    def is_chief(task_type, task_id, cluster_spec):  # of the multi-worker guide with a custom loop
        return (
            task_type is None
            or task_type == "chief"
            or (task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict())
        )

    resolver = SimpleClusterResolver(cluster, task_type=task_type, task_id=task_id)
    for found in (resolver, resolver.resolve()):
        spec = found.cluster_spec()
        assert (found.task_type, found.task_id, spec.as_dict()) == (task_type, task_id, cluster)
        assert is_chief(found.task_type, found.task_id, spec) is resolver.resolve().is_chief is expected
        assert (spec.num_tasks("worker"), spec.job_tasks("worker")) == (len(cluster["worker"]), cluster["worker"])
        assert (spec.num_tasks("ps"), spec.job_tasks("ps")) == (0, [])
        assert SimpleClusterResolver(spec, task_type=task_type, task_id=task_id).resolve() == resolver.resolve()


def test_without_a_cluster_there_is_no_task():
    alone = Topology()
    assert (alone.task_type, alone.task_id, alone.cluster_spec().jobs) == (None, None, [])


def test_a_topology_is_its_own_resolver(monkeypatch):
    topology = Topology.of_processes(num_processes=2, process_id=0, coordinator_address="a:1")
    assert resolve_topology(topology) is topology
    monkeypatch.setenv("TF_CONFIG", ENV["TF_CONFIG"])
    assert resolve_topology(None).process_id == 1
