"""The seam between service and library: what one writes, the other reads."""

from __future__ import annotations

import json

import pytest

from lockstep.errors import ConfigError
from lockstep.topology import Accelerators, Outputs, Task, Topology

CLUSTER = {
    "chief": ("10.0.0.1:2222",),
    "worker": ("10.0.0.2:2222", "10.0.0.3:2222"),
    "ps": ("10.0.0.4:2222",),
}
TASKS = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]


@pytest.mark.parametrize(("role", "index"), TASKS)
@pytest.mark.parametrize("first_role", ["chief", "master"])
def test_every_task_round_trips_through_its_environment(role: str, index: int, first_role: str) -> None:
    cluster = {first_role if name == "chief" else name: value for name, value in CLUSTER.items()}
    topology = Topology(
        cluster=cluster,
        task=Task(role=first_role if role == "chief" else role, index=index, trial="3"),
        job="fashion_1",
        managed=True,
        outputs=Outputs(model_dir="gs://b/m", checkpoint_dir="gs://b/c", tensorboard_dir="gs://b/t"),
        accelerators=Accelerators(count=2, type="NVIDIA_TESLA_V100", simulated=True),
    )
    assert Topology.from_env(topology.to_env()) == topology


def test_a_job_of_one_process_round_trips() -> None:
    topology = Topology(job="alone", outputs=Outputs(model_dir="/tmp/m"))
    assert Topology.from_env(topology.to_env()) == topology


def test_without_variables_there_is_one_process() -> None:
    topology = Topology.from_env({})
    assert (topology.num_processes, topology.process_id, topology.is_chief) == (1, 0, True)
    assert topology.coordinator_address is None
    assert not topology.managed


def test_the_document_is_the_contracts() -> None:
    topology = Topology(cluster=CLUSTER, task=Task(role="worker", index=1), job="j", managed=True)
    assert json.loads(topology.to_env()["TF_CONFIG"]) == {
        "cluster": {name: list(addresses) for name, addresses in CLUSTER.items()},
        "task": {"type": "worker", "index": 1},
        "job": "j",
        "environment": "cloud",
    }


@pytest.mark.parametrize(("role", "index", "rank"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)])
def test_ranks_put_the_chief_first(role: str, index: int, rank: int) -> None:
    topology = Topology(cluster=CLUSTER, task=Task(role=role, index=index))
    assert (topology.process_id, topology.num_processes) == (rank, 3)
    assert topology.coordinator_address == "10.0.0.1:2222"
    assert topology.is_chief == (rank == 0)


def test_without_a_chief_worker_zero_leads() -> None:
    env = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}})}
    topology = Topology.from_env(env)
    assert (topology.process_id, topology.num_processes, topology.is_chief) == (0, 2, True)


def test_a_parameter_server_and_an_evaluator_have_no_rank() -> None:
    for role in ("ps", "evaluator"):
        topology = Topology(cluster=CLUSTER, task=Task(role=role))
        assert not topology.is_chief
        with pytest.raises(ConfigError, match=f"a {role} has no rank"):
            _ = topology.process_id


def test_cluster_spec_is_read_where_tf_config_is_missing() -> None:
    env = Topology(cluster=CLUSTER, task=Task(role="worker", index=1)).to_env()
    del env["TF_CONFIG"]
    assert Topology.from_env(env).process_id == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[]", "not a JSON object"),
        ('{"cluster": []}', "TF_CONFIG: cluster; received"),
        ('{"cluster": {"wroker": ["a:1"]}}', "did you mean 'worker'"),
        ('{"cluster": {"evaluator": ["a:1"]}, "task": {"type": "evaluator"}}', "unknown role in cluster"),
        ('{"cluster": {"worker": "a:1"}}', "cluster.worker"),
        ('{"cluster": {"worker": [1]}}', "cluster.worker"),
        ('{"cluster": {"worker": ["a"]}}', "allowed: host:port"),
        ('{"cluster": {"worker": ["a:70000"]}}', "a port of 1 to 65535"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"index": "\u00b2"}}', "task.index"),
        ('{"cluster": {"chief": ["a:1"], "master": ["a:1"]}, "task": {"type": "chief"}}', "both chief and master"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "an index below 1"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief"}}', "a role of ['worker']"),
        ('{"task": {"type": "boss"}}', "task.type"),
        ('{"task": {"index": "x"}}', "task.index"),
        ('{"task": {"index": true}}', "task.index"),
        ('{"task": {"index": -1}}', "task.index"),
    ],
)
def test_bad_documents_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Topology.from_env({"TF_CONFIG": text})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


WORKERS = '"cluster": {"worker": ["a:1", "b:2"]}'
WITH_CHIEF = '"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]}'


@pytest.mark.parametrize("name", ["TF_CONFIG", "CLUSTER_SPEC"])
@pytest.mark.parametrize(
    ("text", "received"),
    [
        pytest.param(f"{{{WORKERS}}}", "received 'no task'", id="no-task"),
        pytest.param(f'{{{WORKERS}, "task": {{}}}}', "received {}", id="empty"),
        pytest.param(f'{{{WORKERS}, "task": {{"type": "worker"}}}}', "received {'type': 'worker'}", id="no-index"),
        pytest.param(f'{{{WORKERS}, "task": {{"type": "worker", "index": null}}}}', "None}", id="index-null"),
        pytest.param(f'{{{WITH_CHIEF}, "task": {{"index": 0}}}}', "received {'index': 0}", id="no-type"),
        pytest.param(f'{{{WITH_CHIEF}, "task": {{"type": null, "index": 0}}}}', "None", id="type-null"),
        pytest.param('{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}', "received 'no task'", id="with-a-server"),
    ],
)
def test_a_document_that_leaves_the_process_s_place_open_is_refused(name: str, text: str, received: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: task does not say which process of the cluster this is") as caught:
        Topology.from_env({name: text})
    assert received in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "role", "index"),
    [
        ('{"cluster": {"worker": ["a:1"]}}', "worker", 0),
        (f'{{{WORKERS}, "task": {{"index": 1}}}}', "worker", 1),
        (f'{{{WITH_CHIEF}, "task": {{"type": "chief"}}}}', "chief", 0),
        (f'{{{WITH_CHIEF}, "task": {{"type": "evaluator"}}}}', "evaluator", 0),
        ('{"task": {"type": "master", "index": 0}}', "master", 0),
    ],
)
def test_what_a_document_leaves_out_may_be_clear(text: str, role: str, index: int) -> None:
    topology = Topology.from_env({"TF_CONFIG": text})
    assert (topology.task.role, topology.task.index) == (role, index)


@pytest.mark.parametrize("task", ['{"type": "worker", "index": 1}', '{"type": "ps", "index": 0}'])
def test_a_task_with_others_beside_it_needs_a_cluster(task: str) -> None:
    with pytest.raises(ConfigError, match=r"TF_CONFIG: task .* is one of several, but no cluster is given"):
        Topology.from_env({"TF_CONFIG": f'{{"task": {task}}}'})


@pytest.mark.parametrize(
    "address",
    [
        "grpc://host:1",
        "http://host:1",
        "host:0",
        "host:65536",
        "host",
        ":1",
        "a b:1",
        "host:1/",
        "fe80::1:22",
        "u@host:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster.worker; received .*; allowed: host:port") as caught:
        Topology.from_env({"TF_CONFIG": json.dumps({"cluster": {"worker": [address]}})})
    assert str(caught.value).startswith("TF_CONFIG: ")
    assert ("leave grpc:// out" in str(caught.value)) is address.startswith("grpc")


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ('{"worker": ["a:1", "b:1", "a:1"]}', "cluster: worker 0 and worker 2 have the same address; received 'a:1'"),
        (
            '{"chief": ["a:1"], "worker": ["a:1"]}',
            "cluster: chief 0 and worker 0 have the same address; received 'a:1'",
        ),
        ('{"worker": ["a:1"], "evaluator": ["b:1"]}', "leave it out: nobody connects to an evaluator"),
    ],
)
def test_two_processes_never_have_one_place(cluster: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Topology.from_env({"TF_CONFIG": f'{{"cluster": {cluster}, "task": {{"type": "worker", "index": 0}}}}'})
    assert str(caught.value).startswith("TF_CONFIG: ")


@pytest.mark.parametrize("address", ["host:1", "a_b.c-d:65535", "10.0.0.1:22", "[fe80::1]:22", "[::1]:1"])
def test_addresses(address: str) -> None:
    assert Topology.from_env({"TF_CONFIG": json.dumps({"cluster": {"worker": [address]}})}).cluster == {
        "worker": (address,)
    }


def test_bad_accelerators_are_refused() -> None:
    with pytest.raises(ConfigError, match="LOCKSTEP_ACCELERATORS"):
        Topology.from_env({"LOCKSTEP_ACCELERATORS": '{"count": "2", "type": "T"}'})


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (("127.0.0.1:1", "localhost:2", "[::1]:3", "127.8.0.1:4"), True),
        (("127.0.0.1:1", "10.0.0.1:2"), False),
        (("127.0.0.1:1", ""), False),
        (("localhost.example.org:1",), False),
        ((), True),
    ],
    ids=["loopback", "another", "unknown", "like it", "none"],
)
def test_a_cluster_is_on_loopback_where_all_of_it_is(addresses: tuple[str, ...], expected: bool) -> None:
    cluster = {"worker": addresses} if addresses else {}
    assert Topology(cluster=cluster, task=Task(role="worker")).is_on_loopback is expected
