"""A process that dies while it writes its shards leaves nothing that anybody takes for a checkpoint."""

import signal
from pathlib import Path

import pytest
from tests.checkpoints import dying_process
from tests.strategies.job_processes import job
from tests.waiting import wait_until

from lockstep.checkpoints import CheckpointDirectory
from lockstep.errors import PeerLostError

ENV = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.mark.heavy
def test_scripts_that_end_at_once_leave_a_whole_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    with job(tmp_path, [dying_process.__file__, folder, "leave"], num_processes=2, env=ENV) as processes:
        for process in processes.values():
            assert process.end(300) == 0, process.text
    with CheckpointDirectory(folder) as directory:
        assert directory.latest_step() == 3
        assert directory.restore().read().arrays["trainable"]


@pytest.mark.heavy
def test_a_process_that_dies_while_it_writes_leaves_nothing_visible(tmp_path):
    folder = tmp_path / "checkpoints"
    with job(tmp_path, [dying_process.__file__, folder, "die"], num_processes=2, env=ENV) as processes:
        assert processes[1].end(300) == -signal.SIGKILL, processes[1].text
        assert processes[0].end(300) == PeerLostError.exit_code, processes[0].text
    assert "saved\n" in processes[0].text
    assert "saved again" not in processes[0].text
    begun = {path.name for path in folder.iterdir()} - {"2"}
    assert begun, "the other process had begun to write"
    assert not any(name.isdigit() for name in begun), begun
    with CheckpointDirectory(folder) as directory:
        assert directory.latest_step() == 2
        assert directory.restore().read().arrays["trainable"]
        wait_until(
            lambda: [path.name for path in folder.iterdir()] == ["2"], what=lambda: "the removal of what was begun"
        )
