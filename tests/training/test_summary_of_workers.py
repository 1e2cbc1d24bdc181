"""The summary of a training of several processes: the first one writes it, and its numbers are of all of them."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tests.strategies.job_processes import job

SCRIPT = Path(__file__).with_name("summarised_process.py")


@pytest.mark.heavy
def test_two_workers_have_one_summary(tmp_path):
    with job(tmp_path, [SCRIPT, tmp_path / "logs"], num_processes=2, env={"JAX_NUM_CPU_DEVICES": "1"}) as processes:
        for rank, process in processes.items():
            assert process.end() == 0, process.text
            assert json.loads(process.last_line) == [2, 32, 256, 2 * 8 * (3 * (64 + 32) - 64)]
            assert ("summary of fit of" in process.text) is (rank == 0)
        assert "measured by a profile of 3 steps" in processes[0].text
    written = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "logs"))
    written.Reload()
    train = written.Runs()["train"]
    assert "summary/collective_seconds" in train["scalars"]
    assert len(train["histograms"]) == 4
