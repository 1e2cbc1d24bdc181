"""Workers of batch predictions as processes, which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.serving.batch.conftest import expected

WAIT_S = 120.0
NUM_LINES = 120


def _start(folder: Path) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "lockstep.serving.batch", "--model=model.keras", "--run-id=r"),
        *(f"--input-path={folder}/in/*", f"--output-path={folder}/out", "--input-format=JSON"),
        *("--shard-size-bytes=120", "--batch-size=4"),
    ]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.heavy
def test_a_killed_worker_loses_at_most_the_shard_in_hand(tmp_path: Path, numbers_model: keras.Model) -> None:
    numbers_model.save(tmp_path / "model.keras")
    values = np.random.default_rng(0).normal(size=(NUM_LINES, 4)).astype("float32")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("".join(json.dumps(row.tolist()) + "\n" for row in values) + "wrong\n")
    killed = _start(tmp_path)
    deadline = time.monotonic() + WAIT_S
    while len(list(tmp_path.glob("out/prediction.state/*/0*.json"))) < 3:
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=WAIT_S)
    assert killed.returncode == -signal.SIGKILL
    done = {path.name.removesuffix(".json") for path in tmp_path.glob("out/prediction.state/*/0*.json")}
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/prediction.results-*")}
    complete = {path for path in files if path.name.split("-")[1] in done}
    assert len(done) == len(complete)

    again = _start(tmp_path)
    out, _ = again.communicate(timeout=WAIT_S)
    assert again.returncode == 0, out
    assert f"{NUM_LINES} predictions, 1 errors" in out
    assert {path for path in complete if path.stat().st_mtime_ns != files[path]} == set()
    results = sorted(tmp_path.glob("out/prediction.results-*"))
    assert len(complete) < len(results), "it was killed in the middle"
    lines = [line for path in results for line in path.read_text().splitlines()]
    np.testing.assert_allclose([json.loads(line) for line in lines], expected(numbers_model, values), atol=1e-6)
    errors = [path.read_text() for path in sorted(tmp_path.glob("out/prediction.errors_stats-*"))]
    [error] = [json.loads(line) for text in errors for line in text.splitlines()]
    assert error["line"] == NUM_LINES + 1


@pytest.mark.heavy
def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_text("no model")
    worker = _start(tmp_path)
    out, _ = worker.communicate(timeout=WAIT_S)
    assert worker.returncode == 18
    assert out.splitlines() == ["cannot load the model model.keras: it is not a .keras file"]
