"""The benchmarks of the service, of prediction and of training run, and check what they measure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "service.py"
GPU = ROOT / "benchmarks" / "gpu.py"
FIT = ROOT / "benchmarks" / "fit.py"
START = ROOT / "benchmarks" / "start.py"
SERVING = ROOT / "benchmarks" / "serving.py"

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


def test_each_workload_of_the_services_benchmark_runs_in_a_small_size() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--small", "--rounds", "1"], capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in (
        "job: first line over HTTP",
        "as `lockstep jobs` asks",
        "| jobs | a minute |",
        "lines a second, read over HTTP",
        "a line's delay, 4 followers",
        "a pass of the controller",
    ):
        assert row in done.stdout


def test_a_workload_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--cases", "listing,nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--cases: no nothing; allowed: first-line, listing," in done.stderr


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_prediction_server_is_checked_and_measured(tmp_path: Path) -> None:
    chosen = ["--small", "--servers=lockstep", "--models=tabular", "--connections=2", "--rounds=1", "--seconds=1"]
    done = subprocess.run(
        [sys.executable, SERVING, *chosen, f"--folder={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| tabular")]
    case, server, speed, *_, errors, memory = (cell.strip() for cell in row.strip("| ").split("|"))
    assert case.endswith("; connections: 2")
    assert (server, errors) == ("lockstep", "0")
    assert float(speed.replace(",", "")) > 0
    assert float(memory.replace(",", "")) > 0


def test_each_way_to_train_is_checked_and_measured(tmp_path: Path) -> None:
    sides = "keras,one-device,mirrored,loop,pure"
    chosen = ["--cases=dense", "--batch-sizes=256", f"--sides={sides}", "--rounds=2", f"--json={tmp_path}/results.json"]
    done = subprocess.run([sys.executable, FIT, *chosen], capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "results.json").read_text())
    found = {one["side"]: one for one in told["results"]}
    assert list(found) == sides.split(",")
    losses = [one["more"]["losses"] for one in found.values()]
    assert all(one == pytest.approx(losses[0], rel=1e-3) for one in losses)
    assert all(len(one["values"]) == 2 and min(one["values"]) > 0 for one in found.values())
    assert told["machine"]["cores"] > 0


def test_processes_train_on_the_rows_of_one_batch(tmp_path: Path) -> None:
    chosen = ["--processes=2", "--sides=multi-worker", "--cases=dense", "--rounds=2", f"--json={tmp_path}/results.json"]
    done = subprocess.run([sys.executable, FIT, *chosen], capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (one["case"], two["case"]) == tuple(
        f"dense net 784-128-10, batch {size} in each of 2 processes" for size in (64, 256)
    )
    assert len(one["values"]) == len(two["values"]) == 2


def test_a_side_that_trains_in_one_process_is_not_started_in_two() -> None:
    chosen = ["--processes=2", "--sides=keras"]
    done = subprocess.run([sys.executable, FIT, *chosen], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--processes 2: not keras; allowed: multi-worker, pytorch" in done.stderr


def test_the_way_to_the_first_step_is_measured(tmp_path: Path) -> None:
    chosen = ["--cases=dense", "--rounds=1", f"--json={tmp_path}/results.json"]
    done = subprocess.run([sys.executable, START, *chosen], capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {one["case"] for one in json.loads((tmp_path / "results.json").read_text())["results"]}
    assert {"dense net 784-128-10, cold", "dense net 784-128-10, warm", "import lockstep", "lockstep --help"} <= rows


def test_a_training_step_is_counted_and_measured_without_a_gpu(tmp_path: Path) -> None:
    chosen = ["--small", "--sides=lockstep", "--models=block", "--rounds=1", f"--folder={tmp_path}"]
    chosen.append(f"--lockstep={sys.executable}")
    done = subprocess.run([sys.executable, GPU, *chosen], capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It is not a result." in done.stdout
    assert "246,144 parameters" in done.stdout
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["isSmall"] is True
    (only,) = told["results"]
    assert (only["side"], only["error"]) == ("lockstep", "")
    assert len(only["values"]) == 1
    assert only["values"][0] > 0
    assert only["more"]["compile_s"] > 0
    assert "utilisation" not in only["more"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models=block,nothing"], "--models: no nothing; allowed: densenet121, resnet50, block"),
        (["--sides=pytorch"], "--sides: the others are compared with lockstep, so name it, too"),
        (["--steps=5", "--steps-per-execution=2"], "--steps: received 5; allowed: a multiple of 2"),
        (["--batch-sizes=8,0"], "--batch-sizes: received 0; allowed: a whole number of 1 or more"),
    ],
)
def test_what_cannot_be_measured_on_a_gpu_is_refused(options: list[str], message: str) -> None:
    done = subprocess.run([sys.executable, GPU, *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_server_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, SERVING, "--servers=lockstep,nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--servers: no nothing; allowed: lockstep, lockstep-service, fastapi," in done.stderr
