"""Programs that answer requests, under a real runner: when they are ready, when they are ended, and what they get."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest
from tests.runner.test_runner_process import _order, _run
from tests.runner.test_stuck import HERE

from lockstep.jobs.running.order_parts import FileOrder, ServerOrder
from lockstep.jobs.running.orders import Fault, ReplicaOrder
from lockstep.runner.environment import CREDENTIALS, program_environment

SERVER = """
import os, signal, threading, time
from lockstep.heartbeat import report_progress
print("loading", flush=True)
time.sleep(1.0)
threading.Thread(target=lambda: [print("busy", flush=True) or time.sleep(0.2) for _ in range(600)], daemon=True).start()
for number in range(4):
    report_progress(queue=number)
    time.sleep(0.5)
"""


def test_a_server_is_ready_with_its_first_heartbeat(tmp_path: Path) -> None:
    order = _order(
        tmp_path,
        sys.executable,
        "-c",
        SERVER,
        environment=HERE,
        server=ServerOrder(ready_within_s=30.0, silent_within_s=2.0),
    )
    status = _run(order)
    assert status.end is not None
    assert status.end.succeeded, status.end
    assert status.started_time_s is not None
    assert status.ready_time_s is not None
    assert status.ready_time_s - status.started_time_s >= 1.0
    assert status.progress is not None
    assert status.progress.metrics == {"queue": 3.0}


@pytest.mark.parametrize(
    ("hangs", "limits", "problem"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", (30.0, 1.0), "it did not respond for [12] s"),
        pytest.param("time.sleep(600)", (30.0, 1.0), "it did not respond for [12] s", marks=pytest.mark.heavy),
        ("", (0.5, 1.0), "it was not ready within 0 s"),
    ],
    ids=["stopped", "deadlocked", "slow to load"],
)
def test_a_server_that_does_not_respond_is_ended_though_it_prints(
    tmp_path: Path, hangs: str, limits: tuple[float, float], problem: str
) -> None:
    server = ServerOrder(ready_within_s=limits[0], silent_within_s=limits[1])
    order = _order(tmp_path, sys.executable, "-c", SERVER + hangs, environment=HERE, server=server, grace_s=60.0)
    status = _run(order)
    assert status.end is not None
    assert status.end.fault is Fault.STUCK
    assert re.fullmatch(problem, status.end.problem or ""), status.end
    assert status.end.signal == ("SIGKILL" if "SIGSTOP" in hangs else "SIGABRT")


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_server_gets_the_bytes_that_were_deployed_or_none(tmp_path: Path, is_changed: bool) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    digest = hashlib.sha256(b"others" if is_changed else b"weights").hexdigest()
    files = (FileOrder(url=str(tmp_path / "model"), name="model.keras", sha256=digest),)
    server = ServerOrder(ready_within_s=30.0, silent_within_s=2.0)
    script = "import sys; sys.exit(open('model.keras').read() != 'weights')"
    status = _run(_order(tmp_path, sys.executable, "-c", script, server=server, files=files))
    assert status.end is not None
    assert status.end.succeeded == (not is_changed)
    if is_changed:
        assert f"{tmp_path / 'model'} has changed since it was copied" in (status.end.problem or "")
        assert status.started_time_s is None


def test_a_server_gets_no_credentials_for_buckets(tmp_path: Path) -> None:
    node = {**dict.fromkeys(CREDENTIALS, "x"), "PATH": "/bin"}
    server = ServerOrder(ready_within_s=30.0, silent_within_s=2.0)

    def given(order: ReplicaOrder) -> set[str]:
        return CREDENTIALS & program_environment(order, code=[], node=node).keys()

    assert given(_order(tmp_path / "a", "x", server=server)) == set()
    assert given(_order(tmp_path / "b", "x")) == CREDENTIALS
