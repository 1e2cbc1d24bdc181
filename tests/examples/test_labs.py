"""The labs on distribution strategies, re-told: each script runs, and what it prints is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.examples.scripts import numbers, run


@pytest.mark.heavy
def test_mirrored(programs: Path) -> None:
    output = run("labs/mirrored.py", "--data", "digits", "--epochs", 1, "--simulate", 2, cache=programs)
    assert "2 replicas in sync, 128 images in a global batch" in output
    assert numbers("differ by", output)[0] < 1e-4
    on_all, alone = numbers("test_loss", output)
    assert on_all == pytest.approx(alone, abs=2e-4)
    assert on_all < 2


@pytest.mark.heavy
def test_mirrored_custom_loop(programs: Path) -> None:
    arguments = ("--data", "digits", "--epochs", 2, "--simulate", 2, "--devices", "cpu:0", "cpu:1")
    output = run("labs/mirrored_custom_loop.py", *arguments, cache=programs)
    assert "first step, replica 1: 64 images" in output
    shares, (whole, *_) = numbers("64 images,", output), numbers("loss", output)
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(whole, abs=2e-4)
    first, second = numbers("test accuracy", output)
    assert second > 0.7
    assert first <= second + 0.1


@pytest.mark.heavy
def test_tpu(programs: Path, tmp_path: Path) -> None:
    arguments = ("--rows", 500, "--epochs", 3, "--simulate", 4, "--folder", tmp_path)
    output = run("labs/tpu.py", *arguments, cache=programs)
    assert output.startswith("TPUStrategy over 4 x cpu (simulated)\n")
    losses = numbers("test_loss", output)
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert numbers("test_accuracy", output)[-1] > 0.5  # of five classes
    assert output.count("is taken for a") == 5
    assert f"model saved: {tmp_path}/model.keras" in output


@pytest.mark.heavy
def test_one_device(programs: Path) -> None:
    output = run("labs/one_device.py", "--rows", 200, "--epochs", 2, "--simulate", 2, cache=programs)
    assert output.startswith("OneDeviceStrategy on cpu:0 (simulated)\n200 pictures drawn")
    assert "classes cat, dog; 66 of 1,058 parameters are trained\nvariables lie on 1 device\n" in output
    assert numbers("val_accuracy", output)[-1] > 0.8
    assert numbers("val_loss", output)[-1] < numbers("val_loss", output)[0]


@pytest.mark.heavy
def test_assignment(programs: Path, tmp_path: Path) -> None:
    arguments = ("--rows", 1200, "--simulate", 2, "--accuracy", 0.5, "--folder", tmp_path)
    output = run("labs/assignment.py", *arguments, cache=programs)
    num_epochs = len(numbers("validation accuracy", output))
    assert f"ended after {num_epochs} of 10 epochs: 50% are told apart" in output
    assert numbers("validation accuracy", output)[-1] >= 0.5
    assert numbers("differ by", output)[0] < 1e-5
    assert (tmp_path / "model.keras").exists()
