"""The conformance suite of cluster engines: subclass `AbstractClusterConformance`, and return a cluster."""

from __future__ import annotations

import abc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from lockstep.clusters import AbstractCluster
from lockstep.errors import UnavailableError
from lockstep.heartbeat import ProfileRequest, ProfileState
from lockstep.jobs.running.orders import (
    STALE_ORDER,
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ReplicaOrder,
    ReplicaPhase,
)
from lockstep.jobs.running.restarts import RestartPolicy
from lockstep.jobs.running.shell_frames import (
    SHELL_END,
    SHELL_REQUEST,
    FrameKind,
    FrameReader,
    ShellEnd,
    ShellRequest,
    encode_frame,
)
from lockstep.storage import open_bucket

TIMEOUT_S: Final = 60.0
GENERATION: Final = 7
"""The generation of the controller that the suite represents."""

WAIT: Final = "import time; print('up', flush=True); time.sleep(600)"
SERVED: Final = """
import json, os, pathlib, socket, time
cluster = json.loads(os.environ["TF_CONFIG"])
role, index = cluster["task"]["type"], cluster["task"]["index"]
folder = pathlib.Path({folder!r})
if role == "worker":
    address = cluster["cluster"][role][index]
    listener = socket.create_server((address.split(":")[0], int(address.split(":")[1])))
    lives = folder / f"lives-{{index}}"
    life = len(lives.read_text()) if lives.exists() else 0
    lives.open("a").write("x")
    for number in range(50):
        print("life", life, "line", number, "at", address, flush=True)
while role == "ps" or not (folder / "go").exists():
    time.sleep(0.02)
print("done", flush=True)
"""
"""A program whose workers print the number of their launch and their address.

All replicas except the parameter servers end when the file "go" exists.
"""

PROFILED: Final = """
import os, pathlib, time
path = pathlib.Path(os.environ["LOCKSTEP_SPOOL"], "profile-request")
while not path.read_text().endswith("}"):
    time.sleep(0.02)
print(path.read_text(), flush=True)
"""
"""A program that prints the request for a profile, and ends."""

TALK: Final = """
import json, os, socket, sys
cluster = json.loads(os.environ["TF_CONFIG"])
task = cluster["task"]
host, port = cluster["cluster"]["master"][0].split(":")
if task["type"] == "master":
    with socket.create_server((host, int(port))) as server:
        peers = sorted(server.accept()[0].makefile().readline().strip() for _ in range(2))
    print("heard", *peers)
else:
    import time
    for _ in range(200):
        try:
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(f"{task['type']}{task['index']}\\n".encode())
            break
        except OSError:
            time.sleep(0.05)
    time.sleep(600 if task["type"] == "ps" else 0)
"""


def wait_until(cluster: AbstractCluster, gang_id: str, condition: Callable[[GangStatus], bool]) -> GangStatus:
    """Observes a gang until a condition holds. Fails after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    status = None
    while time.monotonic() < deadline:
        status = cluster.observe(gang_id)
        if status is not None and condition(status):
            return status
        time.sleep(0.05)
    raise AssertionError(f"gang {gang_id} did not get there: {status}")


def make_gang(folder: Path, gang_id: str, *roles: str, script: str) -> GangOrder:
    """Returns a gang whose replicas run a Python script. Roles may repeat. The first replica leads."""
    replicas: list[ReplicaOrder] = []
    for role in roles:
        index = sum(replica.role == role for replica in replicas)
        name = f"{role}-replica-{index}"
        spool = folder / gang_id / name
        (spool / "work").mkdir(parents=True)
        replicas.append(
            ReplicaOrder(
                name=name,
                role=role,
                index=index,
                job=gang_id,
                command=(sys.executable, "-c", script),
                spool=str(spool),
                log_url=str(folder / "logs" / gang_id / name),
                grace_s=2.0,
            )
        )
    return GangOrder(gang_id=gang_id, replicas=tuple(replicas), generation=GENERATION)


def log_lines(order: ReplicaOrder) -> list[str]:
    """Returns the texts of a replica's log, in order, and checks that each entry is there once."""
    bucket = open_bucket(order.log_url)
    lines = [json.loads(line) for item in bucket.list() for line in bucket.read(item.key).splitlines()]
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    return [line["text"] for line in lines]


def make_served_gang(folder: Path, gang_id: str) -> GangOrder:
    """Returns a gang with a parameter server. Its workers are launched again alone. It ends when "go" exists."""
    script = SERVED.format(folder=str(folder))
    order = make_gang(folder, gang_id, "master", "worker", "worker", "ps", script=script)
    return replace(order, restart_policy=RestartPolicy())


def await_life(cluster: AbstractCluster, order: GangOrder, *, life: int, num_restarts: int) -> GangStatus:
    """Waits until all replicas run, the first worker in launch `life` (from 0), whose output is in the bucket."""

    def printed(status: GangStatus) -> bool:
        running = [replica for replica in status.replicas if replica.phase is ReplicaPhase.RUNNING]
        if len(running) < len(order.replicas) or len(running[1].restarts) != num_restarts:
            return False
        return any(line.startswith(f"life {life} line 49") for line in log_lines(order.replicas[1]))

    return wait_until(cluster, order.gang_id, printed)


def check_lives(cluster: AbstractCluster, order: GangOrder, *, num_lives: int) -> GangStatus:
    """Ends a gang of `make_served_gang`. Checks that it succeeded, and that each launch is in the log once."""
    worker = order.replicas[1]
    (Path(worker.spool).parents[1] / "go").touch()
    status = wait_until(cluster, order.gang_id, _ended)
    assert status.end is not None
    assert status.end.outcome is GangOutcome.SUCCEEDED, status
    lines = log_lines(worker)
    address = lines[0].rpartition(" ")[2]
    said = [f"life {life} line {number} at {address}" for life in range(num_lives) for number in range(50)]
    assert [line for line in lines if not line.startswith("lockstep: ")] == [*said, "done"]
    assert sum(line.startswith("lockstep: launched again (restart ") for line in lines) == num_lives - 1
    last = status.replicas[1].end
    assert last is not None
    assert last.num_log_entries == len(lines)
    return status


def _ended(status: GangStatus) -> bool:
    return status.phase is GangPhase.ENDED


def _running(status: GangStatus) -> bool:
    return status.phase is GangPhase.RUNNING


def _pids(status: GangStatus) -> list[int]:
    return [replica.pid for replica in status.replicas if replica.pid is not None]


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class AbstractClusterConformance(abc.ABC):
    """The tests of a cluster engine. A subclass returns a started cluster."""

    @abc.abstractmethod
    def cluster(self) -> AbstractCluster:
        """Returns the started cluster under test."""

    def test_a_gang_of_one_succeeds(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "one", "master", script="print('hello')")
        self.cluster().place(order)
        status = wait_until(self.cluster(), "one", _ended)
        assert status.end is not None
        assert status.end.outcome is GangOutcome.SUCCEEDED
        (replica,) = status.replicas
        assert replica.phase is ReplicaPhase.ENDED
        assert replica.placed_time_s is not None
        assert replica.started_time_s is not None
        assert replica.ended_time_s is not None
        assert replica.placed_time_s <= replica.started_time_s <= replica.ended_time_s
        assert log_lines(order.replicas[0]) == ["hello"]
        self.cluster().forget("one")

    def test_placing_twice_is_placing_once(self, tmp_path: Path) -> None:
        script = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
        order = make_gang(tmp_path, "twice", "master", script=script)
        self.cluster().place(order)
        self.cluster().place(order)
        status = wait_until(self.cluster(), "twice", _ended)
        self.cluster().place(order)
        assert status.end == GangEnd(outcome=GangOutcome.SUCCEEDED), status
        assert (tmp_path / "starts").read_text() == "x"
        self.cluster().forget("twice")

    def test_an_unknown_gang_is_none_and_may_be_stopped_and_forgotten(self) -> None:
        assert self.cluster().observe("nobody") is None
        self.cluster().stop("nobody")
        self.cluster().forget("nobody")

    def test_a_failure_names_replica_and_exit_code(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "fails", "master", script="print('why'); raise SystemExit(3)")
        self.cluster().place(order)
        status = wait_until(self.cluster(), "fails", _ended)
        assert status.end is not None
        assert status.end.outcome is GangOutcome.FAILED
        assert status.end.culprit == "master-replica-0"
        assert status.end.reason == "replica master-replica-0: exit code 3"
        assert status.replicas[0].end is not None
        assert status.replicas[0].end.tail == ("why",)
        self.cluster().forget("fails")

    def test_a_killed_worker_ends_the_whole_gang(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "killed", "master", "worker", script=WAIT)
        self.cluster().place(order)
        running = wait_until(self.cluster(), "killed", _running)
        os.kill(_pids(running)[1], signal.SIGKILL)
        status = wait_until(self.cluster(), "killed", _ended)
        assert status.end is not None
        assert status.end.outcome is GangOutcome.FAILED
        assert status.end.reason == "replica worker-replica-0: killed by SIGKILL"
        assert all(_gone(pid) for pid in _pids(running))
        self.cluster().forget("killed")

    @pytest.mark.heavy
    def test_a_killed_worker_beside_parameter_servers_is_launched_again_alone(self, tmp_path: Path) -> None:
        order = make_served_gang(tmp_path, "served")
        self.cluster().place(order)
        wait_until(self.cluster(), "served", _running)
        first = await_life(self.cluster(), order, life=0, num_restarts=0)
        os.kill(_pids(first)[1], signal.SIGKILL)
        second = await_life(self.cluster(), order, life=1, num_restarts=1)
        runner = psutil.Process(_pids(second)[1]).parent()
        assert runner is not None
        assert "lockstep.runner" in runner.cmdline()
        runner.kill()
        third = await_life(self.cluster(), order, life=2, num_restarts=2)
        for status in (second, third):
            assert _pids(status)[0] == _pids(first)[0]
            assert _pids(status)[2:] == _pids(first)[2:]
        assert len({_pids(status)[1] for status in (first, second, third)}) == 3
        assert all(_gone(_pids(status)[1]) for status in (first, second))
        status = check_lives(self.cluster(), order, num_lives=3)
        worker = status.replicas[1]
        assert [(restart.number, restart.reason) for restart in worker.restarts] == [
            (1, "MACHINE_ERROR(SIGKILL, worker-0)"),
            (2, "MACHINE_ERROR(worker-0)"),
        ]
        assert worker.started_time_s == first.replicas[1].started_time_s
        assert worker.usage.wall_s > second.replicas[1].usage.wall_s >= first.replicas[1].usage.wall_s
        self.cluster().forget("served")

    def test_replicas_find_each_other(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "talk", "master", "worker", "ps", script=TALK)
        self.cluster().place(order)
        status = wait_until(self.cluster(), "talk", _ended)
        assert status.end is not None
        assert status.end.outcome is GangOutcome.SUCCEEDED, status
        assert log_lines(order.replicas[0]) == ["heard ps0 worker0"]
        self.cluster().forget("talk")

    def test_a_stopped_gang_ends_with_its_programs(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "stopped", "master", "worker", script=WAIT)
        self.cluster().place(order)
        running = wait_until(self.cluster(), "stopped", _running)
        self.cluster().stop("stopped")
        self.cluster().stop("stopped")
        status = wait_until(self.cluster(), "stopped", _ended)
        assert status.end is not None
        assert status.end.outcome is GangOutcome.STOPPED
        assert all(_gone(pid) for pid in _pids(running))
        self.cluster().forget("stopped")

    def test_a_forgotten_gang_is_unknown_and_its_programs_end(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "forgotten", "master", script=WAIT)
        self.cluster().place(order)
        running = wait_until(self.cluster(), "forgotten", _running)
        self.cluster().forget("forgotten")
        deadline = time.monotonic() + TIMEOUT_S
        while not all(_gone(pid) for pid in _pids(running)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert all(_gone(pid) for pid in _pids(running))
        assert self.cluster().observe("forgotten") is None

    def test_what_a_replaced_service_still_orders_starts_nothing(self, tmp_path: Path) -> None:
        script = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
        self.cluster().fence(GENERATION, owner="")
        self.cluster().fence(GENERATION - 1, owner="")
        stale = make_gang(tmp_path, "stale", "master", script=script)
        self.cluster().place(replace(stale, generation=GENERATION - 1))
        status = wait_until(self.cluster(), "stale", _ended)
        assert status.end == STALE_ORDER
        assert not (tmp_path / "starts").exists()
        current = make_gang(tmp_path, "current", "master", script=script)
        self.cluster().place(current)
        wait_until(self.cluster(), "current", _ended)
        assert (tmp_path / "starts").read_text() == "x"
        self.cluster().place(replace(stale, gang_id="others", owner="another", generation=1))
        status = wait_until(self.cluster(), "others", _ended)
        assert status.end is not None
        assert status.end.outcome is GangOutcome.SUCCEEDED, "another service's generations are its own"
        for gang in ("stale", "current", "others"):
            self.cluster().forget(gang)

    def test_a_request_for_a_profile_reaches_a_replica(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "profiled", "master", script=PROFILED)
        request = ProfileRequest(request_id="p1", num_steps=3, name="master-replica-0")
        with pytest.raises(UnavailableError, match="is not running now"):
            self.cluster().request_profile("profiled", replica="master-replica-0", request=request)
        self.cluster().place(order)
        wait_until(self.cluster(), "profiled", _running)
        with pytest.raises(UnavailableError, match="is not running now"):
            self.cluster().request_profile("profiled", replica="worker-replica-0", request=request)
        self.cluster().request_profile("profiled", replica="master-replica-0", request=request)
        status = wait_until(self.cluster(), "profiled", _ended)
        assert log_lines(order.replicas[0]) == [request.to_bytes().decode()]
        report = status.replicas[0].profile
        assert report is not None
        assert (report.request_id, report.state) == ("p1", ProfileState.FAILED)
        assert report.problem == "the program ended before a training step began"
        self.cluster().forget("profiled")

    def test_a_shell_runs_in_a_replica(self, tmp_path: Path) -> None:
        order = make_gang(tmp_path, "shells", "master", "worker", script=WAIT)
        open_to = replace(order, replicas=(order.replicas[0], replace(order.replicas[1], web_access=True)))
        self.cluster().place(open_to)
        wait_until(self.cluster(), "shells", _running)
        with pytest.raises(UnavailableError, match="accepts no shells now"):
            self.cluster().open_shell("shells", replica="master-replica-0")
        with pytest.raises(UnavailableError, match="accepts no shells now"):
            self.cluster().open_shell("nobody", replica="master-replica-0")
        shell = self.cluster().open_shell("shells", replica="worker-replica-0")
        request = ShellRequest(command=("/bin/sh", "-c", "read word; echo $word $LOCKSTEP_SPOOL; exit 3"))
        shell.send(encode_frame(FrameKind.START, SHELL_REQUEST.dump_json(request)))
        assert shell.receive(timeout_s=0.01) == b""
        shell.send(encode_frame(FrameKind.INPUT, b"hello\n"))
        reader, frames = FrameReader(), []
        while (data := shell.receive(timeout_s=TIMEOUT_S)) is not None:
            frames += reader.feed(data)
        shell.close()
        shell.close()
        texts = [frame.payload for frame in frames]
        assert texts == [f"hello {order.replicas[1].spool}\n".encode(), SHELL_END.dump_json(ShellEnd(exit_code=3))]
        self.cluster().forget("shells")
