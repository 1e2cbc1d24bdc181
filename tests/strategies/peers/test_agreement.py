"""What the processes of a job have to agree upon, and what each makes for itself."""

from pathlib import Path

import pytest
from tests.strategies.job_processes import job

SCRIPT = Path(__file__).parents[1] / "own_variables.py"
ENV = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "LOCKSTEP_MEETING_TIMEOUT_S": "90", "LOCKSTEP_PEER_TIMEOUT_S": "30"}
WAYS = [
    "checkpoint",
    "checkpoint of weights",
    "save_model within the scope",
    "save after fit",
    "save and load",
    "build",
    "clone",
    "copy",
    "make a metric",
    "evaluate a clone",
    "evaluate a clone in all processes",
    "train another",
    "evaluate one made outside",
]


@pytest.mark.heavy
def test_a_variable_that_one_process_makes_is_no_business_of_the_others(tmp_path):
    with job(tmp_path, [SCRIPT, *WAYS], num_processes=2, env={**ENV, "FOLDER": str(tmp_path)}) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert [line for line in process.text.splitlines() if line.startswith("done:")] == [
                f"done: {way}" for way in WAYS
            ], process.text
            # The last thing that the script does: the chief alone changes a model that all of them train.
            assert "the processes differ at variable sequential/dense/bias: chief 0" in process.last_line
