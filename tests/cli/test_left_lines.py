"""Lines that a bucket refuses on a node that goes, in a cluster whose nodes have disks of their own: none is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.spools import segments_of
from lockstep.testing.foreign_ray import ForeignRay
from lockstep.testing.machine import TIMEOUT_S, Machine

NUM_LINES = 300


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def can_have_own_disks() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForeignRay]:
    with ForeignRay() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.heavy
@pytest.mark.timeout(400)
@pytest.mark.skipif(not can_have_own_disks(), reason="needs root, to give a node another disk")
def test_lines_of_a_node_that_is_gone_reach_the_bucket_once_it_takes_them(ray: ForeignRay, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    spool = machine.home.spool
    spool.mkdir(parents=True)
    ray.start(cpus=0, own_disk=spool)
    ray.add("worker", cpus=8, own_disk=spool)
    machine.run("cluster", "attach", ray.address)
    machine.run("up")
    try:
        machine.submit("job", lines=NUM_LINES, pause_s=0.03)
        machine.wait("job", lambda found: found["state"] == "RUNNING")
        wait_until(lambda: list(machine.home.bucket.rglob("attempt-000/*.jsonl")))
        [log] = machine.home.bucket.rglob("attempt-000")
        aside = log.parent.with_suffix(".aside")
        log.parent.rename(aside)
        log.parent.write_text("a file where the bucket's folder should be")
        machine.wait("job", lambda found: found["state"] == "SUCCEEDED")
        ray.end("worker")
        [replica] = spool.glob("*/*")
        names = segments_of(replica)
        assert {name.partition("/")[0] for name in names} == {"log", "metrics"}
        wait_until(lambda: f"{len(names)} segments of logs and metrics" in machine.run("status"))
        log.parent.unlink()
        aside.rename(log.parent)
        wait_until(lambda: not replica.exists())
        assert machine.log_texts("job") == [*(f"line {number}" for number in range(NUM_LINES)), "end"]
        assert "bucket" not in machine.run("status").partition("problem")[2]
    finally:
        machine.run("down", "--cancel")
    assert machine.processes() == []
