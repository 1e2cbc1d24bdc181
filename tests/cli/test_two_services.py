"""Two services on one Ray that neither owns: both run jobs, each sees the other's, and one leaves without a trace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.clusters.ray.processes import end_processes, node_processes
from lockstep.processes import ProcessIdentity
from lockstep.testing.machine import TIMEOUT_S, Machine

MARK = "LOCKSTEP_TEST_RAY"
ACTORS = (
    "import ray, sys; from ray._private.state import actors; ray.init(address=sys.argv[1], log_to_driver=False);"
    "print(sum(actor['State'] == 'ALIVE' for actor in actors().values()))"
)
WAIT = ("--", "1000", "1.0")
ALL = ("--scale-tier", "CUSTOM", "--master-machine-type", "n1-standard-8")
HALF = ("--scale-tier", "CUSTOM", "--master-machine-type", "n1-standard-4")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray of somebody else's, with eight cores."""
    with tempfile.TemporaryDirectory(prefix="lockstep-ray-") as folder:
        token = Path(folder, "token")
        token.write_text("t" * 64)
        token.chmod(0o600)
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        log = Path(folder, "log")
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
            *("--node-ip-address=127.0.0.2", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}/r"),
            *("--num-cpus=8", "--num-gpus=0", f"--memory={32 << 30}"),
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env={**os.environ, MARK: folder}
            )
        first = ProcessIdentity.of(process.pid)
        try:
            wait_until(lambda: "Ray runtime started" in log.read_text())
            found = re.search(r"--address='([^']+)'", log.read_text())
            assert found is not None
            yield found.group(1)
        finally:
            end_processes(lambda: node_processes(first, folder=folder, variable=MARK, mark=folder), what="the Ray")
            process.wait(TIMEOUT_S)


@pytest.fixture
def services(address: str, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    made = (Machine(tmp_path / "ann"), Machine(tmp_path / "bob"))
    for machine in made:
        machine.run("cluster", "attach", address)
        machine.run("up")
    yield made
    for machine in made:
        machine.run("down", "--cancel")
        assert machine.processes() == []


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_two_services_share_an_engine(services: tuple[Machine, Machine], address: str) -> None:
    ann, bob = services
    for machine in services:  # generations differ: one of them has been started more often
        machine.run("submit", "job", *machine.package(), *HALF, "--async", *WAIT)
    for machine in services:
        machine.wait("job", lambda found: found["state"] == "RUNNING")
    # What the other one has is not free, and it is said.
    ann.run("submit", "wide", *ann.package(), *ALL, "--async", "--", "3", "0.0")
    said = ann.wait("wide", lambda found: "others use" in str(found))
    assert "others use 4 of 8 vCPUs" in str(said), said
    assert said["state"] == "QUEUED"
    # A service that dies and comes again ends nothing of the other's, though it is of a later generation.
    os.kill(ann.service_pid(), 9)
    ann.run("up")
    bob.run("submit", "next", *bob.package(), "--async", *HALF, "--", "3", "0.0")
    running = bob.wait("job", lambda found: found["state"] == "RUNNING")
    assert running["lockstep"]["replicas"][0]["phase"] == "running"
    # One goes, and nothing of it is left; the other's job runs on, and what waits for room gets it.
    ann.run("down", "--cancel")
    assert ann.processes() == []
    assert bob.wait("next", lambda found: found["state"] == "SUCCEEDED")["lockstep"]["replicas"]
    assert bob.wait("job", lambda found: True)["state"] == "RUNNING"
    left = subprocess.run([sys.executable, "-c", ACTORS, address], capture_output=True, text=True, check=True).stdout
    assert left.split()[-1] == "2", "a supervisor and a launcher, of the one job that runs"
