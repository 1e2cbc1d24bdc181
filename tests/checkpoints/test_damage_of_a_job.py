"""The processes of a job agree on which checkpoint is damaged, whichever of them reads the damaged file."""

from pathlib import Path

import pytest
from tests.checkpoints import damaged_process
from tests.strategies.job_processes import job


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_all_processes_restore_the_one_before(tmp_path):
    env = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [damaged_process.__file__, tmp_path / "checkpoints"]
    with job(tmp_path, arguments, num_processes=2, env=env) as processes:
        for process in processes.values():
            assert process.end(200) == 0, process.text
            assert "both have agreed" in process.text
        texts = [process.text for process in processes.values()]
    for text in texts:
        assert "3 cannot be read: " in text or "3 is damaged: see the log of process " in text
        assert "checkpoint 2 is restored instead" in text
    assert any("ocdbt.process_1/d/" in text and "were written" in text for text in texts)
