"""What a program reports: event files that a search, the console and TensorBoard read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

import lockstep
from lockstep.errors import ConfigError, InvalidInputError, StorageWriteError
from lockstep.jobs.tuning import TRIAL_VARIABLE, TrialEnvironment
from lockstep.storage import open_bucket
from lockstep.submission import reporting
from lockstep.submission.calls import call_function
from lockstep.topology import TENSORBOARD_DIR

TRIAL = TrialEnvironment(number=3, metric="accuracy", parameters={"rate": 0.1, "units": 16})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reporting, "_reporters", {})
    monkeypatch.setenv(TENSORBOARD_DIR, f"file://{tmp_path}/tensorboard")
    monkeypatch.setenv(TRIAL_VARIABLE, TRIAL.to_text())
    return tmp_path / "tensorboard"


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns what TensorBoard itself reads in the run of reports."""
    shown = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    runs: Mapping[str, Any] = shown.Runs()
    assert set(runs) <= {"report"}
    return {
        tag: [(event.step, float(event.tensor_proto.double_val[0])) for event in shown.Tensors("report", tag)]
        for tag in runs.get("report", {}).get("tensors", [])
    }


def test_reports_are_points_that_tensorboard_shows_with_all_their_digits(folder: Path) -> None:
    lockstep.report(0.1)
    lockstep.report(np.float32(0.25), step=7)
    lockstep.report({"accuracy": 1 / 3, "val loss": 123456789.25})
    lockstep.report({"accuracy": math.nan, "units": 3}, step=np.int64(20))
    found = points(folder)
    assert found["val loss"] == [(8, 123456789.25)], "with a step after the last one"
    assert found["units"] == [(20, 3.0)]
    assert found["accuracy"][:3] == [(0, 0.1), (7, 0.25), (8, 1 / 3)]
    assert math.isnan(found["accuracy"][3][1])


def test_a_restarted_program_makes_void_what_it_reports_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(4):
        lockstep.report(float(step), step=step)
    monkeypatch.setattr(reporting, "_reporters", {})  # as in another process
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("time.time", lambda: 4e9)
    lockstep.report(20.0, step=2)
    assert points(folder)["accuracy"] == [(0, 0.0), (1, 1.0), (2, 20.0)]


def test_without_a_trial_a_value_has_the_default_name_and_without_a_job_nothing_happens(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(TRIAL_VARIABLE)
    lockstep.report(0.5)
    assert points(folder) == {"training/hptuning/metric": [(0, 0.5)]}
    monkeypatch.delenv(TENSORBOARD_DIR)
    monkeypatch.chdir(tmp_path)
    lockstep.report({"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    assert caplog.records == []
    with caplog.at_level("DEBUG"):
        lockstep.report({"loss": 1.0})
    assert "not in a job" in caplog.text
    with pytest.raises(InvalidInputError):
        lockstep.report("high")  # type: ignore[arg-type] # a wrong value is found where the program is written


def test_only_the_chief_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    lockstep.report(0.5)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("values", "step", "message"),
    [
        ("0.5", None, "lockstep.report: the value; received '0.5'; allowed: a number"),
        ({"loss": [1.0, 2.0]}, None, "lockstep.report: loss; received [1.0, 2.0]; allowed: a number"),
        ({}, None, "the names of metrics; received []; allowed: one text or more, none of them empty"),
        ({"": 1.0}, None, "the names of metrics; received ['']; allowed: one text or more, none of them empty"),
        (0.5, -1, "lockstep.report: step; received -1; allowed: a whole number from 0"),
        (0.5, 1.5, "lockstep.report: step; received 1.5; allowed: a whole number from 0"),
    ],
)
def test_what_cannot_be_reported_is_refused(folder: Path, values: Any, step: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        lockstep.report(values, step=step)
    assert str(caught.value) == message
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(StorageWriteError, match=r"reports cannot be written to file://.*/tensorboard/report"):
        lockstep.report(0.5)


def test_reports_are_uploaded_to_a_bucket_at_intervals_and_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(reporting, "finish_at_exit", lambda finish, what: ends.append(finish))
    monkeypatch.setenv(TENSORBOARD_DIR, "memory://reports/job/tensorboard")
    for value in range(3):
        lockstep.report(float(value))

    def uploaded() -> dict[str, list[tuple[int, float]]]:
        bucket = open_bucket("memory://reports/job/tensorboard")
        for item in bucket.list():
            place = folder / item.key
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bucket.read(item.key))
        return points(folder)

    assert uploaded() == {"accuracy": [(0, 0.0)]}
    (end,) = ends
    end()
    assert uploaded() == {"accuracy": [(0, 0.0), (1, 1.0), (2, 2.0)]}


def test_the_function_of_a_trial_gets_its_parameters_and_returns_its_objective(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[Any, ...]] = []

    def objective(data: str, rate: float, units: int) -> float:
        seen.append((data, rate, units))
        lockstep.report(0.25)
        return 0.75

    call_function(objective, arguments=['{"kwargs": {"data": "d", "rate": 9}}', "--rate=0.1", "--units=16"])
    assert seen == [("d", 0.1, 16)]
    assert points(folder) == {"accuracy": [(0, 0.25), (1, 0.75)]}
    call_function(lambda rate, units: {"accuracy": rate, "notes": "good"}, arguments=["{}"])
    assert points(folder)["accuracy"][2:] == [(2, 0.1)]
    for other in (None, "good", [1.0], {"loss": 1.0}):
        call_function(lambda rate, units, other=other: other, arguments=["{}"])
    assert len(points(folder)["accuracy"]) == 3
    assert caplog.messages == ["the returned value is not reported: it is no number, and has no 'accuracy'"] * 3


def test_a_program_without_keras_reports_too(folder: Path) -> None:
    code = "import sys, lockstep; lockstep.report(0.5); assert not {'keras', 'jax', 'optuna'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert points(folder) == {"accuracy": [(0, 0.5)]}


def test_what_a_trial_is_told_is_read_back_and_nothing_else() -> None:
    assert TrialEnvironment.from_env({TRIAL_VARIABLE: TRIAL.to_text()}) == TRIAL
    assert TrialEnvironment.from_env({}) is None
    for text in ("{", "[]", '{"trial": 1}'):
        with pytest.raises(ConfigError, match=TRIAL_VARIABLE):
            TrialEnvironment.from_env({TRIAL_VARIABLE: text})
