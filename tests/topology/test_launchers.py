"""What other launchers' variables say, read from literal environments."""

from __future__ import annotations

import json

import pytest

from lockstep.errors import ConfigError
from lockstep.topology import Topology
from lockstep.topology.launchers import expand_nodes, find_place, from_mpi, from_slurm

JAX = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29400", "LOCAL_RANK": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}
SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NODELIST": "node[01-02],gpu7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_DISTRIBUTION": "block",
}
BATCH = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")} | {"SLURM_PROCID": "0"}
INDEXED_JOB = {
    "JOB_COMPLETION_INDEX": "1",
    "JAX_NUM_PROCESSES": "2",
    "JAX_COORDINATOR_ADDRESS": "train-0.train",
    "JAX_COORDINATOR_PORT": "1234",
}
JOBSET = {
    "JOBSET_NAME": "run",
    "REPLICATED_JOB_NAME": "workers",
    "JOB_INDEX": "1",
    "PROCESSES_IN_JOB": "4",
    "JOB_COMPLETION_INDEX": "2",
    "JAX_PROCESS_COUNT": "8",
}


@pytest.mark.parametrize(
    ("env", "process_id", "num_processes", "coordinator"),
    [
        pytest.param(JAX, 2, 4, "10.0.0.1:1234", id="jax"),
        pytest.param({**JAX, "JAX_COORDINATOR_ADDRESS": "a"}, 2, 4, "a:8476", id="jax without a port"),
        pytest.param({**JAX, "JAX_COORDINATOR_ADDRESS": "fe80::1"}, 2, 4, "[fe80::1]:8476", id="jax with IPv6"),
        pytest.param(TORCHRUN, 2, 4, "node0:29400", id="torchrun"),
        pytest.param({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 2, 4, "node0:29401", id="torchrun's store"),
        pytest.param(INDEXED_JOB, 1, 2, "train-0.train:1234", id="indexed job"),
        pytest.param(JOBSET, 6, 8, "run-workers-0-0.run:8476", id="jobset"),
        pytest.param({**HYDRA, "MASTER_ADDR": "a", "MASTER_PORT": "7"}, 1, 2, "a:7", id="mpich and an address"),
        pytest.param({**OPEN_MPI, "JAX_COORDINATOR_ADDRESS": "b:9"}, 1, 2, "b:9", id="open mpi and an address"),
        pytest.param({**JAX, **SLURM}, 2, 4, "10.0.0.1:1234", id="jax within slurm"),
        pytest.param({**TORCHRUN, **SLURM}, 2, 4, "node0:29400", id="torchrun within slurm"),
        pytest.param({**JAX, **TORCHRUN}, 2, 4, "10.0.0.1:1234", id="jax and torchrun agree"),
    ],
)
def test_what_launchers_say(env, process_id, num_processes, coordinator):
    topology = Topology.from_env(env)
    assert (topology.process_id, topology.num_processes) == (process_id, num_processes)
    assert topology.coordinator_address == coordinator
    assert topology.is_chief == (process_id == 0)
    assert Topology.from_env(topology.to_env()) == topology


def test_slurm_names_every_task_s_node():
    place = from_slurm(SLURM)
    hosts = [address.rpartition(":")[0] for address in place.addresses]
    assert hosts == ["node01", "node01", "node02", "node02", "gpu7"]
    assert (place.process_id, place.num_processes) == (3, 5)
    ports = {address.rpartition(":")[2] for address in place.addresses}
    assert len(ports) == 1
    assert 61440 <= int(ports.pop()) < 65536
    assert from_slurm({**SLURM, "SLURM_JOB_ID": "4243"}).addresses[0] != place.addresses[0]  # a port of its own
    assert from_slurm({**SLURM, "JAX_COORDINATOR_PORT": "99"}).addresses[0] == "node01:99"


@pytest.mark.parametrize("changed", [{"SLURM_DISTRIBUTION": "cyclic"}, {"SLURM_STEP_TASKS_PER_NODE": "5"}])
def test_slurm_s_other_nodes_are_not_guessed(changed):
    assert from_slurm({**SLURM, **changed}).addresses[1:] == ("",) * 4


def test_a_slurm_batch_script_is_one_process():
    assert Topology.from_env(BATCH) == Topology()


def test_one_process_of_mpi_needs_no_address():
    assert from_mpi({"PMI_RANK": "0", "PMI_SIZE": "1"}).num_processes == 1


def test_mpi_on_one_machine_meets_on_loopback():
    assert from_mpi(OPEN_MPI).addresses[0].startswith("127.0.0.1:")
    assert from_mpi({**HYDRA, **SLURM}).addresses[0].startswith("node01:")
    assert from_mpi(HYDRA | SLURM).process_id == 1


def test_a_pod_of_a_job_that_counts_nothing_is_alone():
    assert find_place({"JOB_COMPLETION_INDEX": "3"}) is None


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"JAX_NUM_PROCESSES": "1"},
        {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
        {"JAX_PROCESS_COUNT": "1"},
        {"JAX_PROCESS_COUNT": "1", "JOB_COMPLETION_INDEX": "0"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"JOB_COMPLETION_INDEX": "3"},
    ],
    ids=" ".join,
)
def test_one_process_needs_neither_place_nor_address(env):
    assert Topology.from_env(env) == Topology()


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_PROCESS_ID"),
        ({"JAX_PROCESS_ID": "1"}, "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "1"}, "PMI_SIZE"),
        ({"SLURM_PROCID": "1"}, "SLURM_STEP_NUM_TASKS and SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]"}, "SLURM_PROCID"),
        ({**BATCH, "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NODELIST"),
        ({"JAX_PROCESS_COUNT": "2"}, "JOB_COMPLETION_INDEX"),
        ({"JOB_COMPLETION_INDEX": "1", "JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ({name: value for name, value in JOBSET.items() if name != "JOB_INDEX"}, "JOB_INDEX"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_variables_that_leave_the_process_s_place_open_are_refused(env, missing):
    with pytest.raises(ConfigError) as caught:
        Topology.from_env(env)
    assert str(caught.value).startswith(f"{missing} not set, while ")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "grpc://a:1"}, "JAX_COORDINATOR_ADDRESS; received 'grpc://a:1'"),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "a:0"}, "JAX_COORDINATOR_ADDRESS; received 'a:0'"),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "a", "JAX_COORDINATOR_PORT": "0"}, "JAX_COORDINATOR_PORT; received '0'"),
        ({**TORCHRUN, "MASTER_ADDR": "node0:29400"}, "MASTER_ADDR; received 'node0:29400'"),
        ({**TORCHRUN, "MASTER_ADDR": "tcp://node0"}, "leave tcp:// out"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT; received '70000'; allowed: a port of 1 to 65535"),
        ({**HYDRA, "MASTER_ADDR": "a", "MASTER_PORT": "0"}, "MASTER_PORT; received '0'"),
        ({**SLURM, "JAX_COORDINATOR_PORT": "x"}, "JAX_COORDINATOR_PORT; received 'x'"),
        ({**SLURM, "JAX_COORDINATOR_ADDRESS": "http://a"}, "JAX_COORDINATOR_ADDRESS; received 'http://a'"),
        ({**INDEXED_JOB, "JAX_COORDINATOR_ADDRESS": "a:1/"}, "JAX_COORDINATOR_ADDRESS; received 'a:1/'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_launcher_s_address_that_nobody_can_reach_is_refused_by_its_variable(env, message):
    with pytest.raises(ConfigError) as caught:
        Topology.from_env(env)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({**JAX, "JAX_PROCESS_ID": "4"}, "number 4 of 4"),
        ({**JAX, "JAX_PROCESS_ID": "x"}, "JAX_PROCESS_ID; received 'x'"),
        ({name: JAX[name] for name in JAX if name != "JAX_COORDINATOR_ADDRESS"}, "JAX_COORDINATOR_ADDRESS not set"),
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS not set, while JAX_NUM_PROCESSES is"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR not set"),
        ({**JAX, **TORCHRUN, "RANK": "1"}, "contradict each other; received 'process 2 of 4 and 1 of 4'"),
        (HYDRA, "MPI does not say where its first process is"),
        ({**SLURM, "SLURM_STEP_NODELIST": "node[1-"}, "a list of Slurm's nodes"),
        ({"JOB_COMPLETION_INDEX": "1", "JAX_NUM_PROCESSES": "2"}, "but the first pod's address is not set"),
        ({**SLURM, "JAX_NUM_PROCESSES": "2"}, "contradict each other; received '2 and 5 processes'"),
        ({**JOBSET, "JOB_COMPLETION_INDEX": "4"}, "a number below PROCESSES_IN_JOB, 4"),
        ({**JOBSET, "PROCESSES_IN_JOB": ""}, "PROCESSES_IN_JOB not set"),
    ],
)
def test_contradictions_are_refused_by_name(env, message):
    with pytest.raises(ConfigError) as caught:
        Topology.from_env(env)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tf_config_goes_first_and_has_to_agree():
    cluster = {"chief": ["a:1"], "worker": ["b:2"]}
    env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}
    assert Topology.from_env({**env, **SLURM}).coordinator_address == "a:1"
    assert Topology.from_env({**env, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "c"}).coordinator_address == "a:1"
    with pytest.raises(ConfigError, match="TF_CONFIG and RANK, WORLD_SIZE, MASTER_ADDR contradict"):
        Topology.from_env({**env, **TORCHRUN})


def test_a_job_s_name_and_outputs_come_from_its_service_where_a_launcher_counts():
    env = {**JAX, "TF_CONFIG": json.dumps({"job": "j", "environment": "cloud"}), "AIP_MODEL_DIR": "gs://b/m"}
    topology = Topology.from_env(env)
    assert (topology.job, topology.managed, topology.outputs.model_dir) == ("j", True, "gs://b/m")
    assert topology.process_id == 2


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("x", ["x"]),
        ("node[01-03,7],x", ["node01", "node02", "node03", "node7", "x"]),
        ("a,b", ["a", "b"]),
        ("r[1-2]n[8-9]", ["r1n8", "r1n9", "r2n8", "r2n9"]),
        ("n[098-101].example", ["n098.example", "n099.example", "n100.example", "n101.example"]),
    ],
)
def test_node_lists(text, hosts):
    assert expand_nodes(text) == hosts


@pytest.mark.parametrize("text", ["", "n[", "n[]", "n[a-b]", "n[1-99999999]", "n]1", "a[1-400]b[1-400]"])
def test_what_is_no_node_list(text):
    with pytest.raises(ConfigError, match="a list of Slurm's nodes"):
        expand_nodes(text)


def test_a_job_of_which_one_address_is_known():
    topology = Topology.of_processes(num_processes=3, process_id=1, coordinator_address="a:1")
    assert topology.synchronous_addresses == ("a:1", "", "")
    assert (topology.process_id, topology.task.role) == (1, "worker")
    with pytest.raises(ConfigError, match="the first process has no address"):
        Topology.of_processes(num_processes=3, process_id=1, coordinator_address="")
