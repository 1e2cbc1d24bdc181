"""What training writes in the background is there when its script has ended, however it ended."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.training import ending_process
from tests.training.test_tensorboard import scalars

from lockstep.checkpoints import CheckpointDirectory

ENDS = {"normal": 0, "sys.exit": 0, "exception": 1, "SIGTERM": -signal.SIGTERM}


def run(what, how, folder):
    command = [sys.executable, ending_process.__file__, what, how, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == ENDS[how], found.stderr
    assert "interpreter shutdown" not in found.stderr
    return found


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.heavy
def test_the_last_checkpoint_is_written(how, tmp_path):
    run("checkpoint", how, tmp_path)
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["20", "30"]
    with CheckpointDirectory(tmp_path, is_read_only=True) as directory:
        state = directory.restore()
    assert state.position.step == 30
    assert np.isfinite(state.arrays["trainable"]["0"]).all()


@pytest.mark.parametrize("how", ["sys.exit", "exception", "SIGTERM"])
@pytest.mark.heavy
def test_the_last_events_are_written(how, tmp_path):
    run("events", how, tmp_path)
    assert [step for tag, step in scalars(tmp_path / "train") if tag == "batch_loss"] == [0, 1, 2, 3]
