"""Machines of every kind that can be had without a cloud: the conformance suite, and what is local ones' alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lockstep.clusters import AbstractCluster, EngineChoice, open_cluster
from lockstep.clusters.choice import PROVISIONED
from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.local import MACHINE_VARIABLE
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster
from lockstep.jobs.running.ends import end_reason_of
from lockstep.jobs.running.orders import GangOutcome, GangPhase
from lockstep.processes import ProcessIdentity, find_marked
from lockstep.testing.clusters import WAIT, await_life, log_lines, make_gang, make_served_gang
from lockstep.testing.clusters import wait_until as wait_until_gang
from lockstep.testing.machines import AbstractMachinesConformance, FakeMachines, machine_of

pytestmark = pytest.mark.filterwarnings(
    # Ray 2.60 leaves a socket and a pipe of its own start-up to the garbage collector.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

LAB = {
    "name": "test",
    "provider": {"type": "local"},
    "nodeTypes": {"cpu": {"machineType": "n1-standard-4", "maxNodes": 2}},
}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def placement_groups(home: Home) -> list[str]:
    """Returns the placement groups that Ray holds still, as another process sees them."""
    head = EmbeddedHead(home)
    record = head.find()
    assert record is not None
    script = (
        "import sys, json, ray; ray.init(sys.argv[1], log_to_driver=False);"
        "from ray.util.placement_group import placement_group_table as table;"
        "print('groups', json.dumps([g['name'] for g in table().values() if g['state'] != 'REMOVED']))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, record.address],
        env={**os.environ, **head.environment()},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("groups ")]
    return json.loads(line.removeprefix("groups "))


class TestFakeMachines(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _machines(self) -> None:
        self._made = FakeMachines()

    def machines(self) -> AbstractMachines:
        return self._made


@pytest.fixture(scope="module")
def cluster(other_home: Home) -> Iterator[AbstractCluster]:
    catalogue = load_catalogue()
    choice = EngineChoice(name=PROVISIONED, definition=parse_cluster(LAB, source="lab", catalogue=catalogue))
    made = open_cluster(choice, home=other_home, catalogue=catalogue)
    made.start()
    yield made
    for name in machines_of(made).names():  # what a test that failed has left
        machines_of(made).remove(name)
    made.shut_down()


def machines_of(cluster: AbstractCluster) -> AbstractMachines:
    assert cluster.provisioning is not None
    return cluster.provisioning.machines


class TestLocalMachines(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _machines(self, cluster: AbstractCluster) -> None:
        self._made = machines_of(cluster)

    def machines(self) -> AbstractMachines:
        return self._made


def test_a_local_machine_becomes_a_node_of_its_name_and_leaves_nothing_behind(cluster: AbstractCluster) -> None:
    machines = machines_of(cluster)
    machines.create("test-cpu-1-abcdef", node_type="cpu")
    wait_until(lambda: bool(cluster.nodes()))
    [node] = cluster.nodes()
    assert (node.name, node.node_type, node.resources["vcpus"]) == ("test-cpu-1-abcdef", "cpu", 4)
    [first, *_] = find_marked(MACHINE_VARIABLE, accept=lambda mark: mark.endswith("test-cpu-1-abcdef.json"))
    os.kill(first.pid, 9)  # one process of it, whichever: the machine is there until all of it is gone
    machines.remove("test-cpu-1-abcdef")
    assert machines.names() == frozenset()
    assert find_marked(MACHINE_VARIABLE, accept=lambda mark: mark.endswith("test-cpu-1-abcdef.json")) == []
    wait_until(lambda: not cluster.nodes())


@pytest.mark.heavy
def test_a_machine_whose_starter_died_before_it_wrote_its_number_down_is_found(cluster: AbstractCluster) -> None:
    machines = machines_of(cluster)
    machines.create("test-cpu-0-fedcba", node_type="cpu")
    [path] = {
        mark
        for process in find_marked(MACHINE_VARIABLE, accept=lambda mark: mark.endswith("test-cpu-0-fedcba.json"))
        for mark in [_mark(process.pid)]
    }
    record = Path(path)
    record.write_text(json.dumps({**json.loads(record.read_text()), "process": None}))
    assert machines.names() == {"test-cpu-0-fedcba"}
    machines.remove("test-cpu-0-fedcba")
    assert machines.names() == frozenset()


@pytest.mark.heavy
def test_a_worker_whose_machine_is_gone_takes_its_gang_with_it(cluster: AbstractCluster, tmp_path: Path) -> None:
    """Beside parameter servers too: it would have another address, which the others never learn."""
    names = ("test-cpu-0-aaaaaa", "test-cpu-1-bbbbbb")
    for name in names:
        machines_of(cluster).create(name, node_type="cpu")
    wait_until(lambda: len(cluster.nodes()) == 2)
    order = make_served_gang(tmp_path, "moved")
    stays, goes = names
    machines = (stays, goes, stays, stays)
    replicas = [replace(each, machine=machine) for each, machine in zip(order.replicas, machines, strict=True)]
    order = replace(order, replicas=tuple(replicas))
    cluster.place(order)
    running = await_life(cluster, order, life=0, num_restarts=0)
    machines_of(cluster).remove(goes)
    status = wait_until_gang(cluster, "moved", lambda status: status.end is not None)
    assert status.end is not None
    assert (status.end.outcome, status.end.culprit) == (GangOutcome.FAILED, "worker-replica-0")
    assert str(end_reason_of(status)) == "NODE_LOST(worker-0)"
    assert [replica.restarts for replica in status.replicas] == [()] * 4
    left = [replica.pid for replica in running.replicas if replica.pid is not None and psutil.pid_exists(replica.pid)]
    assert [pid for pid in left if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE] == []
    cluster.forget("moved")
    machines_of(cluster).remove(stays)


@pytest.mark.heavy
def test_a_worker_whose_machine_is_gone_goes_on_alone_on_another(
    cluster: AbstractCluster, other_home: Home, tmp_path: Path
) -> None:
    stays, goes, first, second = names = tuple(f"test-cpu-{min(number, 1)}-{number:06x}" for number in range(4))
    for name in (stays, goes):
        machines_of(cluster).create(name, node_type="cpu")
    wait_until(lambda: len(cluster.nodes()) == 2)
    order = make_served_gang(tmp_path, "moves")
    machines = (stays, goes, stays, stays)
    replicas = [replace(each, machine=machine) for each, machine in zip(order.replicas, machines, strict=True)]
    order = replace(order, replicas=tuple(replicas), place_within_s=5.0, move_within_s=600.0)
    cluster.place(order)
    before = await_life(cluster, order, life=0, num_restarts=0)
    for life, (lost, next_one) in enumerate(((goes, first), (first, second)), start=1):
        machines_of(cluster).remove(lost)
        wait_until_gang(cluster, "moves", lambda status, lost=lost: status.displaced == {"worker-replica-0": lost})
        if next_one is second:
            cluster.move("moves", replica="worker-replica-0", machine="test-cpu-9-999999")  # which is gone by then
            gone = {"worker-replica-0": "test-cpu-9-999999"}
            wait_until_gang(cluster, "moves", lambda status, gone=gone: status.displaced == gone)
        machines_of(cluster).create(next_one, node_type="cpu")
        wait_until(lambda name=next_one: name in [node.name for node in cluster.nodes()])
        for _ in range(2):
            cluster.move("moves", replica="worker-replica-0", machine=next_one)
        now = await_life(cluster, order, life=life, num_restarts=life)
        assert now.displaced == {}
        places = [machine_of(replica.pid) for replica in now.replicas if replica.pid is not None]
        assert places == [stays, next_one, stays, stays]
        assert [replica.pid for replica in now.replicas[2:]] == [replica.pid for replica in before.replicas[2:]]
        assert now.replicas[1].restarts[-1].reason == "NODE_LOST(worker-0)"
    lines = log_lines(order.replicas[1])
    addresses = {line.rpartition(" ")[2] for line in lines if line.startswith("life ")}
    assert len(addresses) == 3
    (tmp_path / "go").touch()
    status = wait_until_gang(cluster, "moves", lambda status: status.end is not None)
    assert status.end is not None
    assert status.end.outcome is GangOutcome.SUCCEEDED
    assert [line for line in log_lines(order.replicas[1]) if line.startswith("life 2")] == [
        line for line in lines if line.startswith("life 2")
    ]
    wait_until(lambda: placement_groups(other_home) == [])
    cluster.forget("moves")
    for name in names:
        machines_of(cluster).remove(name)


@pytest.mark.heavy
def test_a_program_ends_with_its_machine(cluster: AbstractCluster, tmp_path: Path) -> None:
    machines = machines_of(cluster)
    machines.create("test-cpu-0-012345", node_type="cpu")
    wait_until(lambda: [node.name for node in cluster.nodes()] == ["test-cpu-0-012345"])
    order = make_gang(tmp_path, "taken", "master", script=WAIT)
    (replica,) = order.replicas
    cluster.place(replace(order, replicas=(replace(replica, machine="test-cpu-0-012345"),)))
    (running,) = wait_until_gang(cluster, "taken", lambda status: status.phase is GangPhase.RUNNING).replicas
    assert running.pid is not None
    program = ProcessIdentity.of(running.pid)
    assert program is not None
    machines.remove("test-cpu-0-012345")
    assert program.wait(timeout_s=60)
    wait_until(lambda: not Path(replica.spool).exists())  # its runner has ended it, and put all away
    cluster.forget("taken")


def _mark(pid: int) -> str:
    return psutil.Process(pid).environ()[MACHINE_VARIABLE]
