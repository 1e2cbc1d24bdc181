"""What a job's processes tell PyTorch, JAX and Keras."""

from __future__ import annotations

import pytest

from lockstep.topology import FRAMEWORK_VARIABLES, Task, Topology, framework_env

CLUSTER = {"chief": ("10.0.0.1:2222",), "worker": ("10.0.0.2:2222", "10.0.0.3:2222"), "ps": ("10.0.0.4:2222",)}


def env(role: str, index: int = 0) -> dict[str, str]:
    return framework_env(Topology(cluster=CLUSTER, task=Task(role=role, index=index)))


def test_the_chief_is_the_first_process() -> None:
    assert env("chief") == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "2222",
        "RANK": "0",
        "WORLD_SIZE": "3",
        "GROUP_RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:2222",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "0",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:2222,10.0.0.2:2222,10.0.0.3:2222",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "0",
    }


def test_workers_follow_it() -> None:
    assert [env("worker", index)["RANK"] for index in range(2)] == ["1", "2"]


@pytest.mark.parametrize("role", ["ps", "evaluator"])
def test_who_does_not_train_in_step_has_no_rank(role: str) -> None:
    assert env(role) == {}


def test_a_job_of_one_process_has_nobody_to_find() -> None:
    assert framework_env(Topology(task=Task(role="chief", index=0))) == {}


@pytest.mark.parametrize(("role", "index"), [("chief", 0), ("worker", 0), ("worker", 1)])
def test_they_agree_with_what_lockstep_reads(role: str, index: int) -> None:
    cluster = {name: addresses for name, addresses in CLUSTER.items() if name != "ps"}
    topology = Topology(cluster=cluster, task=Task(role=role, index=index))
    assert Topology.from_env({**topology.to_env(), **framework_env(topology)}) == topology
    alone = Topology.from_env(framework_env(topology))  # another launcher would say no more than this
    assert (alone.num_processes, alone.process_id) == (topology.num_processes, topology.process_id)
    assert alone.synchronous_addresses[0] == topology.synchronous_addresses[0]


def test_the_names_of_all_variables_are_known() -> None:
    topology = Topology(cluster={"worker": ("a:1", "b:2")}, task=Task(role="worker", index=1))
    assert tuple(framework_env(topology)) == FRAMEWORK_VARIABLES
