"""Two services on one Ray that neither owns: both run jobs, each sees the other's, and one leaves without a trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.testing.foreign_ray import ForeignRay
from lockstep.testing.machine import Machine

ACTORS = """
import ray, sys, time
from ray._private.state import actors
ray.init(address=sys.argv[1], log_to_driver=False)
deadline = time.monotonic() + 30
# The job that has just ended is released a moment after its end is recorded.
while (left := sum(actor["State"] == "ALIVE" for actor in actors().values())) > 2 and time.monotonic() < deadline:
    time.sleep(0.1)
print(left)
"""
WAIT = ("--", "1000", "1.0")
ALL = ("--scale-tier", "CUSTOM", "--master-machine-type", "n1-standard-8")
HALF = ("--scale-tier", "CUSTOM", "--master-machine-type", "n1-standard-4")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray of somebody else's, with eight cores."""
    with ForeignRay() as ray:
        for name, value in ray.environment.items():
            monkeypatch.setenv(name, value)
        ray.start(cpus=8)
        yield ray.address


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
    ann.kill_service()
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
