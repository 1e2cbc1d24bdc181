"""The guides of tf.distribute, re-told: each script runs, and what it prints is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.examples.scripts import numbers, run, run_pair

DIGITS = ("--data", "digits")


@pytest.mark.heavy
def test_keras_fit(programs: Path) -> None:
    output = run("guides/keras_fit.py", *DIGITS, "--epochs", 2, "--simulate", 2, cache=programs)
    assert output.startswith("MirroredStrategy over 2 x cpu (simulated)\n1438 images to train on")
    assert numbers("learning rate", output) == [1e-3] * 2
    trained, alone, on_one_device = numbers("test loss", output)
    assert trained == pytest.approx(alone, abs=2e-4)
    assert trained == pytest.approx(on_one_device, abs=2e-4)
    assert numbers("test accuracy", output)[0] > 0.7


@pytest.mark.heavy
def test_custom_training(programs: Path) -> None:
    output = run("guides/custom_training.py", *DIGITS, "--epochs", 2, "--simulate", 2, cache=programs)
    first, second, restored = numbers("test loss", output)
    assert second < first < 2
    assert restored == pytest.approx(second, abs=2e-4)
    assert numbers("test accuracy", output)[-1] > 0.7


@pytest.mark.heavy
def test_multi_worker_keras(programs: Path, tmp_path: Path) -> None:
    arguments = (*DIGITS, "--epochs", 2, "--folder", tmp_path)
    chief, worker = run_pair("guides/multi_worker_keras.py", *arguments, cache=programs)
    assert "worker 0: MultiWorkerMirroredStrategy over 2 processes with 2 x cpu in all, chief: True" in chief
    assert "worker 1: MultiWorkerMirroredStrategy over 2 processes with 2 x cpu in all, chief: False" in worker
    trained, loaded = numbers("test loss", chief)
    assert numbers("test loss", worker) == [trained]
    assert loaded == pytest.approx(trained, abs=2e-4)
    assert numbers("test accuracy", chief)[0] > 0.8
    assert "saved" not in worker
    assert {"checkpoints", "logs", "model.keras"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.heavy
def test_multi_worker_custom_loop(programs: Path, tmp_path: Path) -> None:
    arguments = (*DIGITS, "--rows", 640, "--folder", tmp_path)
    chief, worker = run_pair("guides/multi_worker_custom_loop.py", *arguments, "--epochs", 1, cache=programs)
    assert numbers("loss", chief) == numbers("loss", worker)
    assert "worker 0: 5 steps in all, model saved" in chief  # of 2 x 64 images
    assert "worker 1: 5 steps in all, the chief saved the model" in worker


@pytest.mark.heavy
def test_multi_worker_custom_loop_goes_on_where_it_was(programs: Path, tmp_path: Path) -> None:
    script, options = "guides/multi_worker_custom_loop.py", (*DIGITS, "--rows", 640)
    whole, _ = run_pair(script, *options, "--epochs", 3, "--folder", tmp_path / "whole", cache=programs)
    begun, _ = run_pair(script, *options, "--epochs", 1, "--folder", tmp_path / "parts", cache=programs)
    ended, _ = run_pair(script, *options, "--epochs", 3, "--folder", tmp_path / "parts", cache=programs)
    assert "worker 0: going on from epoch 1, step 5" in ended
    assert numbers("loss", begun) + numbers("loss", ended) == pytest.approx(numbers("loss", whole), abs=2e-4)


@pytest.mark.heavy
def test_input(programs: Path) -> None:
    output = run("guides/input.py", "--simulate", 4, cache=programs)
    assert "batch 0: [[0, 1], [2, 3], [4, 5], [6, 7]]" in output
    assert "batch 2: [[16, 17, 18], [19, 20, 21]]" in output  # 6 rows on 4 replicas: over two of them
    assert "231; it should be 231" in output
    assert "process 0 of 1, 4 replicas in all" in output
    assert "[0.0, 11.0, 22.0, 33.0]" in output
    assert "{'is_even': [True, False, True], 'number': [16, 17, 18]} on the first replica" in output


@pytest.mark.heavy
def test_save_and_load(programs: Path) -> None:
    output = run("guides/save_and_load.py", *DIGITS, "--rows", 512, "--simulate", 2, cache=programs)
    differences = numbers("differ by", output)
    assert len(differences) == 6  # three loaded models, two sets of weights, one run in two parts
    assert max(differences) < 1e-4
    assert output.count("trained on: 4 steps, then 6") == 2
    assert "parts: OneDeviceStrategy on cpu:0, up to epoch 3, 12 steps" in output
