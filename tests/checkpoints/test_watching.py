"""Checkpoints as another process sees them that looks on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.checkpoints.watching import CheckpointWatcher
from lockstep.errors import InvalidInputError


def make_model() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def save(directory: CheckpointDirectory, model: Any, *, step: int) -> None:
    model.set_weights([np.full((2, 1), step)])
    directory.save(TrainingState.capture(model, position=Position(epoch=step, batch=0, step=step)))
    directory.wait()


def steps_of(state: TrainingState | None) -> list[float]:
    return [] if state is None else [state.position.step, *np.unique(state.arrays["trainable"]["0"])]


def test_each_new_one_is_seen_once(tmp_path: Path) -> None:
    watcher = CheckpointWatcher(tmp_path / "run")
    assert watcher.next() is None
    assert not (tmp_path / "run").exists()
    model = make_model()
    with CheckpointDirectory(tmp_path / "run") as directory:
        assert watcher.next() is None
        save(directory, model, step=3)
        assert steps_of(watcher.next()) == [3, 3.0]
        assert watcher.next() is None
        for step in (4, 5, 6, 7):
            save(directory, model, step=step)
        assert steps_of(watcher.next()) == [7, 7.0], "those between were overtaken"
        assert watcher.next() is None
    watcher.close()
    watcher.close()


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path) as directory:
        save(directory, make_model(), step=1)
        unfinished = tmp_path / "2.orbax-checkpoint-tmp"
        unfinished.mkdir()
        (unfinished / "half").touch()
        watcher = CheckpointWatcher(tmp_path)
        assert steps_of(watcher.next()) == [1, 1.0]
        watcher.close()
        assert (unfinished / "half").exists()
        shutil.rmtree(unfinished)


def test_one_that_cannot_be_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watcher = CheckpointWatcher(tmp_path)
    model = make_model()
    with CheckpointDirectory(tmp_path) as directory:
        save(directory, model, step=1)
        shutil.rmtree(tmp_path / "1" / "document")
        assert watcher.next() is None
        assert "the checkpoint of step 1 is skipped" in caplog.text
        caplog.clear()
        assert watcher.next() is None
        assert caplog.text == "", "it is said once"
        save(directory, model, step=2)
        assert steps_of(watcher.next()) == [2, 2.0]
    watcher.close()


def test_one_that_is_removed_while_it_is_read_is_not_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = CheckpointWatcher(tmp_path)
    model = make_model()
    with CheckpointDirectory(tmp_path, keep=1) as directory:
        save(directory, model, step=1)
        look = CheckpointDirectory.latest_step

        def look_and_overtake(self: CheckpointDirectory) -> int | None:
            step = look(self)
            if step == 1:
                save(directory, model, step=2)
            return step

        monkeypatch.setattr(CheckpointDirectory, "latest_step", look_and_overtake)
        assert watcher.next() is None
        assert steps_of(watcher.next()) == [2, 2.0]
        assert "is skipped" not in caplog.text
    watcher.close()


def test_a_directory_is_one_that_checkpoints_can_be_in() -> None:
    with pytest.raises(InvalidInputError, match="unsupported URL for checkpoints"):
        CheckpointWatcher("s3://bucket/run")


def test_a_state_outlives_its_checkpoint(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path) as directory:
        save(directory, make_model(), step=3)
    watcher = CheckpointWatcher(tmp_path)
    state = watcher.next()
    watcher.close()
    shutil.rmtree(tmp_path)
    assert state is not None
    model = make_model()
    state.apply(model)
    np.testing.assert_array_equal(model.trainable_variables[0].value, np.full((2, 1), 3))
