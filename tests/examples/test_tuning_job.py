"""The example of a search, as a person submits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lockstep.testing.machine import Machine

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tuning"
NUM_TRIALS = 4
TIMEOUT_S = 400.0


def test_a_search_by_the_command_line(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    document = yaml.safe_load((FOLDER / "config.yaml").read_text())
    document["trainingInput"]["hyperparameters"]["maxTrials"] = NUM_TRIALS
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document))
    machine.run("up")
    try:
        flags = ("--package-path", str(FOLDER), "--module-name", "train", "--config", str(tmp_path / "config.yaml"))
        machine.run("submit", "shoes", *flags, "--async", "--", "--data", "digits", "--epochs", "2")
        job = machine.wait("shoes", lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
        assert job["state"] == "SUCCEEDED", job
        trials = job["trainingOutput"]["trials"]
        assert sorted(trial["trialId"] for trial in trials) == [str(number) for number in range(1, NUM_TRIALS + 1)]
        values = [trial["finalMetric"]["objectiveValue"] for trial in trials]
        assert values == sorted(values, reverse=True)
        assert all(0 < value <= 1 for value in values)
        described = machine.run("describe", "shoes")
        assert "shoes.1" in described or "learning-rate" in described
        assert f"--batch-size={trials[0]['hyperparameters']['batch-size']}" in json.dumps(
            machine.wait(f"shoes.{trials[0]['trialId']}", lambda job: True, timeout_s=TIMEOUT_S)
        )
    finally:
        machine.run("down", "--cancel")
