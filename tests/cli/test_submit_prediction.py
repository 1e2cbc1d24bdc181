"""Batch predictions from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.testing.machine import Machine

assert lockstep is not None

pytestmark = pytest.mark.filterwarnings(
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that sums its two inputs, and with instances."""
    made = tmp_path_factory.mktemp("batch")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.save(made / "model.keras")
    (made / "in").mkdir()
    for name in ("a", "b"):
        (made / "in" / name).write_text("".join(f"[{number}, 1]\n" for number in range(10)) + "[1]\n")
    return made


def test_files_are_predicted_and_described(machine: Machine, folder: Path, tmp_path: Path) -> None:
    flags = ("--model-dir", str(folder), "--input-paths", f"{folder}/in/", "--output-path", str(tmp_path / "out"))
    out = machine.run("submit-prediction", "sums", *flags, "--data-format", "text", "--region", "us-central1")
    assert "predicted: 20 instances, 2 errors" in out
    [results] = (tmp_path / "out").glob("prediction.results-*")
    found = [json.loads(line) for line in results.read_text().splitlines()]
    np.testing.assert_allclose(found, [[number + 1] for number in range(10)] * 2, atol=1e-6)
    [errors] = (tmp_path / "out").glob("prediction.errors_stats-*")
    assert [json.loads(line)["line"] for line in errors.read_text().splitlines()] == [11, 11]
    assert f"predictions  {tmp_path / 'out'}" in machine.run("describe", "sums")
    assert "sums" in machine.run("jobs", "--sort-by", "mlUnits")
    assert "is a batch prediction, which saves no model" in machine.run("deploy", "m", "--job", "sums", code=18)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "m", "--model-dir", "d"), "give either --model or --model-dir"),
        (("--model-dir", "d", "--version", "v"), "--version; received 'v'; allowed: only with --model"),
        (("--model-dir", "d", "--data-format", "avro"), "--data-format; received 'avro'; allowed: json, text"),
    ],
)
def test_flags_that_do_not_fit_are_refused(refuse: Callable[..., str], flags: tuple[str, ...], message: str) -> None:
    paths = ("--input-paths", "/d/*", "--output-path", "/o")
    assert message in refuse("submit-prediction", "b", *flags, *paths, code=64)
