"""What tests of clusters stand on: real processes of a script that are killed, stopped, restarted and ended."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from lockstep.processes.ports import reserve_address
from lockstep.testing.script_cluster import ScriptCluster

SCRIPT = """
import os, sys, time
from pathlib import Path
from lockstep.parameter_server.local_processes import LocalProcesses
topology = LocalProcesses().resolve()
print(topology.task.role, topology.task.index, os.environ["LOCKSTEP_CLUSTER_TOKEN"], sys.argv[1], os.environ["X"])
if topology.task.role == "chief":
    while not Path("go").exists():
        time.sleep(0.01)
    sys.exit(3)
while True:
    time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_cluster_is_killed_stopped_restarted_and_ended(tmp_path: Path, script: Path) -> None:
    with ScriptCluster([script, "own"], folder=tmp_path, evaluator=True, env={"X": "x"}) as cluster:
        names = ["chief 0", "evaluator 0", "ps 0", "worker 0", "worker 1"]
        assert sorted(cluster.processes) == names
        for name in names:
            role, index = name.split()
            cluster.wait_for(" own x\n", role, int(index))
        words = [cluster.text(name.split()[0], int(name[-1])).split() for name in names]
        assert [" ".join(line[:2]) for line in words] == names
        assert {len(line[2]) for line in words} == {64}
        assert len({line[2] for line in words}) == 1
        first = cluster.processes["worker 1"]
        cluster.kill("worker", 1)
        assert not first.is_alive
        assert cluster.codes == {"worker 1": -signal.SIGKILL}
        cluster.restart("worker", 1)
        cluster.wait_until(lambda: cluster.text("worker", 1).count(" own x\n") == 2)
        cluster.send(signal.SIGSTOP, "worker", 0)
        stopped = psutil.Process(cluster.processes["worker 0"].pid)
        cluster.wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
        (tmp_path / "go").touch()
        assert cluster.end() == 3
        left = list(cluster.processes.values())
        assert len(left) == 4
    assert not any(process.is_alive for process in left)
    for address in (*cluster.topology.synchronous_addresses, *cluster.topology.cluster["ps"]):
        port = int(address.rpartition(":")[2])
        reserve_address("127.0.0.1", ports=range(port, port + 1)).close()


def test_what_is_killed_may_come_back_by_itself(tmp_path: Path, script: Path) -> None:
    with ScriptCluster([script, "own"], folder=tmp_path, env={"X": "x"}, max_restarts=1) as cluster:
        cluster.wait_for(" own x\n", "ps")
        cluster.kill("ps")
        cluster.wait_until(lambda: cluster.text("ps").count(" own x\n") == 2)
        assert cluster.codes == {}


def test_a_text_that_does_not_come_is_said_with_all_that_came(tmp_path: Path, script: Path) -> None:
    with ScriptCluster([script, "own"], folder=tmp_path, num_workers=1, env={"X": "x"}) as cluster:
        cluster.wait_for(" own x\n")
        with pytest.raises(AssertionError, match=r"(?s)'more' of chief 0 did not come within 0.1 s:.*--- chief 0, run"):
            cluster.wait_for("more", timeout_s=0.1)
        (tmp_path / "go").touch()
        with pytest.raises(AssertionError, match=r"(?s)chief 0 ended with 3 before 'more':.*--- chief 0, 3\nchief 0 "):
            cluster.wait_for("more")
