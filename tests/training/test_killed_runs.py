"""Runs that are killed at ten random steps, one after the other, and go on: they end as if nothing had happened."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.strategies.job_processes import job
from tests.training import killed_run

SCRIPT = Path(killed_run.__file__)
NUM_STEPS = killed_run.NUM_STEPS * killed_run.NUM_TRAINED
NUM_KILLS = 10
SECONDS = 300


def run(folder, *, strategy, kill_step=0, rank=0, num_devices=1, precision="mixed_float16"):
    """Runs the processes of a job until they have ended; returns their output."""
    env = {"STRATEGY": strategy, "KILL_RANK": str(rank), "JAX_NUM_CPU_DEVICES": str(num_devices), "NPROC": "8"}
    env |= {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "xla"), "LOCKSTEP_MEETING_TIMEOUT_S": "90"}
    arguments = [SCRIPT, folder / "checkpoints", folder / "result.npz", kill_step, precision]
    if strategy in ("multi_worker", "sharded"):
        with job(folder, arguments, num_processes=2, env={**env, "JAX_NUM_CPU_DEVICES": "1"}) as processes:
            codes = [process.end(SECONDS) for process in processes.values()]
            text = "\n".join(process.text for process in processes.values())
    else:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        codes, text = [done.returncode], done.stdout + done.stderr
    if kill_step:
        assert codes[rank] == -signal.SIGKILL, text
        assert all(codes), text
    else:
        assert not any(codes), text
    return text


def result_of(folder):
    return dict(np.load(folder / "result.npz"))


def kill_points(seed, *, number=NUM_KILLS):
    points = sorted(np.random.default_rng(seed).choice(np.arange(2, NUM_STEPS), number, replace=False))
    return [int(point) for point in points]


def make_folder(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    return folder


def assert_equal(found, expected, *, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name in expected:
        if name == "epochs":
            continue
        one, two = found[name].astype(np.float64), expected[name].astype(np.float64)
        if tolerance:
            assert np.linalg.norm(one - two) <= tolerance * np.linalg.norm(two) + 1e-7, name
        else:
            np.testing.assert_array_equal(one, two, err_msg=name)


def kill_and_resume(tmp_path, points, *, tolerance=0.0, device_counts=(2,), **options):
    """Kills a run at each of the points, and compares its end with that of a run that was not killed."""
    whole, killed = make_folder(tmp_path, "whole"), make_folder(tmp_path, "killed")
    run(whole, num_devices=device_counts[0], **options)
    expected = result_of(whole)
    assert expected["epochs"].tolist() == list(range(killed_run.NUM_TRAINED)), "it was stopped early"
    assert expected["best_epoch"] == 1, "the best checkpoint has outlived the others"
    assert not np.array_equal(expected["restored_0"], expected["last_0"])
    if options["strategy"] != "sharded":  # there, no process could keep the best weights whole
        np.testing.assert_array_equal(expected["restored_0"], expected["best_0"])
    ranks = np.random.default_rng(len(points)).integers(0, 2, len(points))
    for number, point in enumerate(points):
        rank = int(ranks[number]) if options["strategy"] in ("multi_worker", "sharded") else 0
        num_devices = device_counts[number % len(device_counts)]
        text = run(killed, kill_step=point, rank=rank, num_devices=num_devices, **options)
        # A save waits for the one before, so that of step 3 is complete when that of step 6 begins.
        assert not number or points[number - 1] <= 6 or "going on with epoch" in text, text
        assert not (killed / "result.npz").exists()
    run(killed, num_devices=device_counts[-1], **options)
    assert_equal(result_of(killed), expected, tolerance=tolerance)
    text = run(killed, num_devices=device_counts[-1], **options)
    assert "EarlyStopping has ended this run after epoch 5; nothing to do" in text
    again = result_of(killed)
    assert again["epochs"].tolist() == []
    best = {name: value for name, value in again.items() if name.startswith(("best", "restored"))}
    assert_equal(best, {name: expected[name] for name in best}, tolerance=tolerance)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_run_that_was_killed_twice_ends_as_one_that_was_not(tmp_path):
    kill_and_resume(tmp_path, kill_points(1, number=2), strategy="one_device", device_counts=(1,))


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker", "sharded"])
def test_a_run_that_was_killed_ten_times_ends_bit_for_bit_as_one_that_was_not(tmp_path, strategy):
    kill_and_resume(tmp_path, kill_points(7), strategy=strategy)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_run_that_was_killed_ten_times_goes_on_with_other_numbers_of_devices(tmp_path):
    options = {"strategy": "mirrored", "precision": "float32", "tolerance": 1e-5}
    kill_and_resume(tmp_path, kill_points(8), device_counts=(2, 3, 1), **options)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_run_of_parameter_servers_goes_on_from_its_last_epoch(tmp_path):
    kill_and_resume(tmp_path, kill_points(9), strategy="parameter_server", precision="float32", tolerance=1e-5)
