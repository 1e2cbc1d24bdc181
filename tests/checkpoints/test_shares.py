"""What each of two processes saves, reads and keeps in memory of a model that only both of them can hold."""

import json
from pathlib import Path

import pytest
from tests.checkpoints import measured_process, not_finite_process
from tests.strategies.job_processes import job

ROOT = Path(__file__).parents[2]
MIB = 2**20


def run(folder, *, size_bytes, timeout_s):
    """Returns what both processes noted, and how large the files are that each has written."""
    env = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "FOLDER": str(folder), "PYTHONPATH": str(ROOT)}
    with job(folder, [measured_process.__file__, size_bytes], num_processes=2, env=env) as processes:
        for process in processes.values():
            assert process.end(timeout_s) == 0, process.text
    arrays = folder / "checkpoints" / "3" / "arrays"
    return [
        (
            json.loads((folder / f"{rank}.json").read_text()),
            sum(path.stat().st_size for path in (arrays / f"ocdbt.process_{rank}").rglob("*") if path.is_file()),
        )
        for rank in range(2)
    ]


def test_each_process_writes_and_reads_its_own_shards_and_nothing_is_gathered(tmp_path):
    for noted, written_bytes in run(tmp_path, size_bytes=32 * MIB, timeout_s=300):
        assert noted["share"] == 16 * MIB
        assert 0.7 * noted["share"] < written_bytes < 1.1 * noted["share"]  # random numbers, compressed
        # Once to compare the checksums, and once to restore.
        assert noted["restoring"]["read"] < 2 * written_bytes + MIB
        assert noted["saving"]["exchanged"] < 100
        assert noted["restoring"]["exchanged"] < 100


@pytest.mark.heavy
def test_where_one_process_has_a_nan_none_saves(tmp_path):
    env = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "PYTHONPATH": str(ROOT)}
    arguments = [not_finite_process.__file__, tmp_path / "checkpoints"]
    with job(tmp_path, arguments, num_processes=2, env=env) as processes:
        for process in processes.values():
            assert process.end(90) == 0, process.text
            assert "saved ['2']" in process.text
    assert "first/kernel became NaN or infinite" in processes[1].text


@pytest.mark.heavy
def test_a_gibibyte_needs_the_memory_of_a_share(tmp_path):
    for noted, written_bytes in run(tmp_path, size_bytes=1024 * MIB, timeout_s=500):
        assert noted["share"] == 512 * MIB
        assert written_bytes < 1.1 * noted["share"]
        assert noted["saving"]["memory"] < 1.2 * noted["share"]
        assert noted["restoring"]["memory"] < 1.2 * noted["share"]
        assert noted["kept"] < 0.1 * noted["share"]
        assert noted["restoring"]["read"] < 1.1 * noted["share"]
