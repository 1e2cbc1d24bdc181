"""What keeps processes from training together, found when they meet and said in each of them."""

import contextlib
import os
import socket
import threading
from pathlib import Path

import psutil
import pytest
from tests.strategies import watched_process
from tests.strategies.job_processes import job, loopback_cluster, tf_config

from lockstep.errors import ConfigError, PeerLostError, PortInUseError, UnavailableError
from lockstep.strategies.peers.meeting import Introduction, _interface_of, fault_among, installed_versions, meet_peers
from lockstep.testing.ports import free_port
from lockstep.topology import Topology

SCRIPT = Path(watched_process.__file__)
ENV = {"LOCKSTEP_PEER_TIMEOUT_S": "2", "WAIT_S": "10"}


def topology(rank, *, cluster=None, num_processes=2):
    return Topology.from_env(tf_config(cluster or loopback_cluster(num_processes), rank))


def hello(rank, *, num_processes=2, **versions):
    return Introduction(
        rank=rank,
        num_processes=num_processes,
        role=f"worker {rank}",
        address=f"10.0.0.{rank}:1",
        host=f"node{rank}",
        pid=100 + rank,
        versions={"jax": "1", **versions},
    )


def test_all_know_all(tmp_path):
    with job(tmp_path, [SCRIPT, "all leave"], num_processes=4, env=ENV) as processes:
        for process in processes.values():
            assert process.end() == 0, process.text
        assert len({process.last_line for process in processes.values()}) == 1
        assert processes[3].last_line.count("worker") == 3


def test_a_process_that_never_comes_is_named_by_those_that_did(tmp_path):
    cluster = loopback_cluster(3)
    with job(
        tmp_path, [SCRIPT, "wait"], num_processes=3, ranks=[0, 1], cluster=cluster, env={**ENV, "WAIT_S": "3"}
    ) as processes:
        for process in processes.values():
            assert process.end() == PeerLostError.exit_code
            assert f"worker 1 (rank 2, {cluster['worker'][1]}) did not arrive at the meeting" in process.last_line


def test_a_chief_that_never_comes():
    cluster = loopback_cluster(2)
    with pytest.raises(PeerLostError) as caught:
        meet_peers(topology(1, cluster=cluster), wait_s=0.3, timeout_s=1)
    line = f"the chief (rank 0, {cluster['chief'][0]}) did not arrive at the meeting: connection refused, for 0.3 s"
    assert line in str(caught.value)


def test_a_chief_whose_name_does_not_resolve():
    cluster = {"chief": ["no-such-host.invalid:1"], "worker": ["127.0.0.1:1"]}
    with pytest.raises(PeerLostError, match=r"the name no-such-host\.invalid does not resolve"):
        meet_peers(topology(1, cluster=cluster), wait_s=0.1, timeout_s=1)


def test_a_port_in_use_is_said_with_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        cluster = {"chief": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:1"]}
        with pytest.raises(PortInUseError) as caught:
            meet_peers(topology(0, cluster=cluster), wait_s=1, timeout_s=1)
    assert f"the chief cannot listen at 127.0.0.1:{port}: the port is in use by process {os.getpid()}" in str(
        caught.value
    )


def answering(reply):
    """Starts something that answers its first caller with these bytes; returns its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server, server.accept()[0] as caller, contextlib.suppress(ConnectionError):
            caller.sendall(reply)
            caller.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"kind": "lockstep", "protocol": 99}\n'])
def test_something_else_at_the_chief_s_address(reply):
    cluster = {"chief": [f"127.0.0.1:{answering(reply)}"], "worker": ["127.0.0.1:1"]}
    with pytest.raises(UnavailableError, match="is not a chief of this version of Lockstep"):
        meet_peers(topology(1, cluster=cluster), wait_s=5, timeout_s=1)


def test_different_counts_are_named_in_every_process(tmp_path):
    cluster = loopback_cluster(3)
    smaller = {"chief": cluster["chief"], "worker": cluster["worker"][:1]}
    with job(
        tmp_path,
        [SCRIPT, "wait"],
        num_processes=2,
        cluster=cluster,
        env=ENV,
        env_of=lambda rank: tf_config(cluster if rank else smaller, rank),
    ) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert "the processes do not agree on how many they are: 2 says chief 0" in process.last_line
            assert "3 says worker 0" in process.last_line


def test_two_of_one_rank_are_named_in_every_process(tmp_path):
    cluster = loopback_cluster(3)
    with job(
        tmp_path,
        [SCRIPT, "wait"],
        num_processes=3,
        cluster=cluster,
        env=ENV,
        env_of=lambda rank: tf_config(cluster, min(rank, 1)),
    ) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert "two processes have rank 1: worker 0 (rank 1" in process.last_line
            assert str(processes[2].process.pid) in process.last_line


def test_different_versions_are_named_in_every_process(tmp_path):
    # What Python's own metadata says: a folder ahead of the environment's.
    other = tmp_path / "other" / "keras-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 0.0.1\n")
    with job(
        tmp_path,
        [SCRIPT, "wait"],
        num_processes=2,
        env=ENV,
        env_of=lambda rank: {"PYTHONPATH": str(other.parent)} if rank else {},
    ) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert "the processes run different versions of keras: " in process.last_line
            assert "0.0.1 on worker 0 (rank 1" in process.last_line


def test_a_job_that_is_complete_takes_nobody_more(tmp_path):
    cluster = loopback_cluster(2)
    with job(tmp_path, [SCRIPT, "wait"], num_processes=2, cluster=cluster, env=ENV) as processes:
        processes[0].wait_for("met")
        with pytest.raises(ConfigError, match="has all its 2 processes already"):
            meet_peers(topology(1, cluster=cluster), wait_s=5, timeout_s=1)
        assert processes[0].process.poll() is None


def test_strangers_do_not_disturb_a_meeting(tmp_path):
    cluster = loopback_cluster(2)
    with job(tmp_path, [SCRIPT, "all leave"], num_processes=2, ranks=[0], cluster=cluster, env=ENV) as processes:
        host, port = cluster["chief"][0].split(":")
        for text in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"kind": "hello"}\n', b"[1]\n", b"\xff" * 100_000 + b"\n"):
            _say(host, int(port), text)
        with job(tmp_path, [SCRIPT, "all leave"], num_processes=2, ranks=[1], cluster=cluster, env=ENV) as late:
            assert (late[1].end(), processes[0].end()) == (0, 0)


def _say(host, port, text):
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as stranger:
                stranger.sendall(text)
            return
        except ConnectionRefusedError:  # the chief is still on its way
            threading.Event().wait(0.05)


def test_the_versions_are_those_that_are_installed():
    versions = installed_versions()
    assert {"lockstep-train", "jax", "jaxlib", "python"} <= set(versions)
    assert {"keras", "keras-nightly"} & set(versions)


@pytest.mark.parametrize(
    ("hellos", "message"),
    [
        ([hello(0), hello(1)], None),
        ([hello(0), hello(2)], "worker 2 (rank 2, 10.0.0.2:1, process 102 on node2) is not one of 2 processes"),
        ([hello(0), hello(1, num_processes=3)], "2 says worker 0"),
        ([hello(0), hello(1), hello(1)], "two processes have rank 1"),
        ([hello(0), hello(1, jax="2")], "different versions of jax: 1 on worker 0"),
        ([hello(0), hello(1, extra="2")], "different versions of extra: none on worker 0"),
    ],
)
def test_faults(hellos, message):
    fault = fault_among(hellos)
    assert fault is None if message is None else message in str(fault)


def test_a_free_port_is_taken_on_the_loopback_interface_alone():
    port = free_port()
    cluster = {"chief": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:1"]}
    chief = threading.Thread(target=_meet_alone, args=(cluster,), daemon=True)
    chief.start()

    def listening():
        return [
            connection.laddr.ip
            for connection in psutil.Process().net_connections(kind="tcp")
            if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
        ]

    while chief.is_alive() and not listening():
        threading.Event().wait(0.02)
    assert listening() == ["127.0.0.1"]
    chief.join()


def _meet_alone(cluster):
    with pytest.raises(PeerLostError):
        meet_peers(topology(0, cluster=cluster), wait_s=1, timeout_s=1)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("no-such-host.invalid", ""),
    ],
)
def test_where_the_chief_listens(host, expected):
    assert _interface_of(host)[0] in {expected, "::1" if host == "localhost" else expected}


def test_a_machine_s_own_name_on_the_loopback_interface_is_not_where_others_go(monkeypatch):
    # As Debian's /etc/hosts has it.
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))])
    assert _interface_of("node7") == ("", socket.AF_INET)
