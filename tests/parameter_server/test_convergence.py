"""Workers that do not wait for each other come to what one device comes to, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing.script_cluster import ScriptCluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 600.0
ONE_POINT = 0.01


def one_device(script: str, folder: Path) -> dict[str, float]:
    output = subprocess.run(
        [sys.executable, SCRIPTS / script, "one"],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return json.loads(output.strip().splitlines()[-1])


def cluster(script: str, folder: Path, *, num_workers: int, num_servers: int) -> dict[str, float]:
    with ScriptCluster(
        [SCRIPTS / script], folder=folder, num_workers=num_workers, num_servers=num_servers
    ) as processes:
        assert processes.end(timeout_s=TIMEOUT_S) == 0, processes.text("chief")
        assert all(processes.end("worker", index) == 0 for index in range(num_workers))
        return json.loads(processes.text("chief").strip().splitlines()[-1])


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory: pytest.TempPathFactory) -> float:
    return one_device("fashion_mnist.py", tmp_path_factory.mktemp("one"))["accuracy"]


@pytest.mark.parametrize(("num_workers", "num_servers"), [(2, 1), (3, 1), (4, 2)], ids=lambda number: f"{number}")
def test_fashion_mnist_within_one_point(accuracy: float, tmp_path: Path, num_workers: int, num_servers: int) -> None:
    found = cluster("fashion_mnist.py", tmp_path, num_workers=num_workers, num_servers=num_servers)
    assert accuracy > 0.85, "it was learnt at all"
    assert abs(found["accuracy"] - accuracy) < ONE_POINT


@pytest.mark.parametrize(("num_workers", "num_servers"), [(2, 2), (3, 2), (4, 1)], ids=lambda number: f"{number}")
def test_ten_million_rows_come_to_the_known_optimum(tmp_path: Path, num_workers: int, num_servers: int) -> None:
    found = cluster("click_through.py", tmp_path, num_workers=num_workers, num_servers=num_servers)
    assert found["num_met"] > 20_000
    assert found["best_accuracy"] > 0.8
    assert found["best_accuracy"] - found["accuracy"] < ONE_POINT
    assert found["loss"] - found["best_loss"] < 0.02
