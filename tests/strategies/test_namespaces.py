"""Processes with network stacks and addresses of their own, as on machines of their own: a bridge, a cable to each."""

import os
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest
from tests.strategies import training_process, watched_process
from tests.strategies.job_processes import job

from lockstep.errors import PeerLostError

TIMEOUT_S = 3.0
PORT = 2222


class Network:
    """Network namespaces, each with an address, joined by a bridge."""

    def __init__(self, size):
        self.mark = f"ls{os.getpid() % 100_000}"
        self.namespaces = [f"{self.mark}-{number}" for number in range(size)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(size)]

    @property
    def cluster(self):
        chief, *workers = [f"{address}:{PORT}" for address in self.addresses]
        return {"chief": [chief], "worker": workers}

    def prefix(self, rank):
        return ["ip", "netns", "exec", self.namespaces[rank]]

    def cut(self, rank):
        """Takes the cable of one out."""
        ip("link", "set", f"{self.mark}v{rank}", "down")

    def build(self):
        """Completes what `network` has begun with: the first namespace and the bridge."""
        ip("link", "set", f"{self.mark}b", "up")
        for number, (namespace, address) in enumerate(zip(self.namespaces, self.addresses, strict=True)):
            outer, inner = f"{self.mark}v{number}", f"{self.mark}i{number}"
            if number:
                ip("netns", "add", namespace)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", namespace)
            ip("link", "set", outer, "master", f"{self.mark}b", "up")
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", inner)
            ip("-n", namespace, "link", "set", inner, "up")
            ip("-n", namespace, "link", "set", "lo", "up")

    def destroy(self):
        for number, namespace in enumerate(self.namespaces):
            # The kernel takes its time with what a namespace holds: the cable is taken out first.
            subprocess.run(["ip", "link", "delete", f"{self.mark}v{number}"], capture_output=True)
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
        subprocess.run(["ip", "link", "delete", f"{self.mark}b"], capture_output=True)


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def network(size):
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    built = Network(size)
    try:
        ip("netns", "add", built.namespaces[0])
        ip("link", "add", f"{built.mark}b", "type", "bridge")
    except OSError as error:
        built.destroy()
        pytest.skip(f"no network namespaces here: {error}")
    try:
        built.build()
        yield built
    finally:
        built.destroy()


@pytest.mark.parametrize("cut_off", [pytest.param(0, marks=pytest.mark.heavy), 2])
def test_a_cut_cable_ends_all_processes_within_the_bound(tmp_path, cut_off):
    with (
        network(3) as net,
        job(
            tmp_path,
            [watched_process.__file__, "wait"],
            num_processes=3,
            cluster=net.cluster,
            env={"LOCKSTEP_PEER_TIMEOUT_S": str(TIMEOUT_S)},
            prefix_of=net.prefix,
        ) as processes,
    ):
        for process in processes.values():
            process.wait_for("met")
        net.cut(cut_off)
        cut_at = time.monotonic()
        for process in processes.values():
            assert process.end() == PeerLostError.exit_code
            assert "hangs or cannot be reached" in process.last_line
        assert time.monotonic() - cut_at < TIMEOUT_S + 1
        for rank, process in processes.items():
            named = cut_off if rank != cut_off else (1 if cut_off == 0 else 0)
            assert f"(rank {named}, {net.addresses[named]}:{PORT})" in process.last_line


@pytest.mark.heavy
def test_training_over_addresses_of_their_own_and_a_cut_cable(tmp_path):
    # The machine's name leads to the loopback interface in each namespace: the addresses that the collectives take are
    # those by which the processes have met.
    with (
        network(2) as net,
        job(
            tmp_path,
            [training_process.__file__, "for ever"],
            num_processes=2,
            cluster=net.cluster,
            env={"LOCKSTEP_PEER_TIMEOUT_S": str(TIMEOUT_S), "LOCKSTEP_MEETING_TIMEOUT_S": "60", "NPROC": "8"},
            prefix_of=net.prefix,
        ) as processes,
    ):
        for process in processes.values():
            process.wait_for("training")
        listening = subprocess.run(
            ["ip", "netns", "exec", net.namespaces[0], "ss", "-Hltn"], capture_output=True, text=True
        ).stdout.splitlines()
        hosts = {line.split()[3].rpartition(":")[0] for line in listening}
        assert hosts == {net.addresses[0], "[::ffff:127.0.0.1]"}, listening
        net.cut(1)
        cut_at = time.monotonic()
        for rank, process in processes.items():
            assert process.end() == PeerLostError.exit_code
            assert f"(rank {1 - rank}, {net.addresses[1 - rank]}:{PORT})" in process.last_line
        assert time.monotonic() - cut_at < TIMEOUT_S + 1
