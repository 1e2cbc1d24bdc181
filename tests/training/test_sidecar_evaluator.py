"""The evaluator beside a training: each step once, the last one too, and the best model in a bucket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState, mark_ended
from lockstep.data import read_records
from lockstep.errors import InvalidInputError
from lockstep.training import BackupAndRestore, SidecarEvaluator, TensorBoard, load_model

TIMEOUT_S = 60.0
INPUTS = np.ones((4, 2), np.float32)
TARGETS = np.zeros((4, 1), np.float32)
DATA = (INPUTS, TARGETS)


def make_model() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def save(folder: Path, *, step: int, value: float) -> None:
    """Saves a model that gives a value for each row."""
    model = make_model()
    model._symbolic_build(data_batch=(INPUTS, TARGETS, None))
    model.optimizer.build(model.trainable_variables)
    model.set_weights([np.full((2, 1), value / 2)])
    with CheckpointDirectory(folder, keep=9) as directory:
        directory.save(TrainingState.capture(model, position=Position(epoch=step, batch=0, step=step)))


def evaluate(folder: Path, **options: Any) -> SidecarEvaluator:
    evaluator = SidecarEvaluator(make_model(), DATA, folder, **options)
    evaluator.start()
    return evaluator


def scalars(board: Path) -> Iterator[tuple[str, int, float]]:
    for path in sorted((board / "validation").iterdir()):
        for record in read_records(str(path)):
            event = Event.FromString(record)
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_the_end_of_a_training_ends_the_evaluator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, step=2, value=3)
    mark_ended(tmp_path)
    assert evaluate(tmp_path).results == {2: {"loss": 9.0, "mae": 3.0}}
    assert capsys.readouterr().out == "checkpoint of step 2: loss 9, mae 3\n"


def test_each_checkpoint_is_evaluated_while_it_appears(tmp_path: Path) -> None:
    evaluated: dict[int, threading.Event] = {step: threading.Event() for step in (1, 2, 3)}

    class Noting(keras.callbacks.Callback):
        num_batches = 0

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_batches += 1

        def on_checkpoint_evaluated(self, step: int, logs: Any) -> None:
            evaluated[step].set()

    noting, board, done = Noting(), TensorBoard(tmp_path / "board"), threading.Event()

    def train() -> None:
        for step, has_come in evaluated.items():
            save(tmp_path / "run", step=step, value=step)
            if step < 3:
                has_come.wait(TIMEOUT_S)
        mark_ended(tmp_path / "run")
        done.set()

    threading.Thread(target=train, daemon=True).start()
    found = evaluate(tmp_path / "run", callbacks=[noting, board], steps=2, batch_size=1)
    board.on_train_end()  # closes the files, as the end of a script does
    assert done.is_set()
    assert found.results == {step: {"loss": step**2.0, "mae": step} for step in (1, 2, 3)}
    assert noting.num_batches == 3 * 2
    losses = [
        (step, value) for tag, step, value in scalars(tmp_path / "board") if tag == "evaluation_loss_vs_iterations"
    ]
    assert losses == [(1, 1.0), (2, 4.0), (3, 9.0)]


def test_an_evaluator_that_is_started_again_evaluates_no_step_twice(tmp_path: Path) -> None:
    save(tmp_path, step=1, value=2)
    first = evaluate(tmp_path, max_evaluations=1)
    path = tmp_path / "evaluations.json"
    path.write_text(path.read_text().replace("4.0", "4.5"))  # another result than an evaluation would give
    mark_ended(tmp_path)
    assert evaluate(tmp_path).results == {1: {"loss": 4.5, "mae": 2.0}}
    save(tmp_path, step=2, value=1)
    assert first.results.keys() == {1}
    assert evaluate(tmp_path, max_evaluations=1).results.keys() == {1}, "evaluations before the restart count"
    assert evaluate(tmp_path, max_evaluations=2).results.keys() == {1, 2}


def test_results_that_cannot_be_read_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, step=1, value=2)
    (tmp_path / "evaluations.json").write_text('{"1": ')
    assert evaluate(tmp_path, max_evaluations=1).results == {1: {"loss": 4.0, "mae": 2.0}}
    assert "evaluations.json cannot be read, and evaluation begins anew" in caplog.text
    assert json.loads((tmp_path / "evaluations.json").read_text()) == {"1": {"loss": 4.0, "mae": 2.0}}


@pytest.mark.parametrize(("mode", "expected"), [("auto", 1.0), ("max", 3.0)])
def test_the_best_model_is_saved(tmp_path: Path, mode: Any, expected: float) -> None:
    run, best = tmp_path / "run", tmp_path / "best"
    for number, value in enumerate((2.0, 1.0, 3.0), start=1):
        save(run, step=number, value=value)
        evaluate(run, max_evaluations=number, best_model_url=best, monitor="mae", mode=mode)
    np.testing.assert_allclose(load_model(best).predict(INPUTS, verbose=0), np.full((4, 1), expected))


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, step=1, value=1)
    evaluate(tmp_path, max_evaluations=1)
    save(tmp_path, step=2, value=2)
    largest = max((tmp_path / "2").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    largest.write_bytes(largest.read_bytes()[:-1])
    mark_ended(tmp_path)
    assert evaluate(tmp_path).results.keys() == {1}
    lines = [one for one in caplog.messages if "is skipped" in one]
    assert len(lines) == 1
    assert lines[0].startswith("the checkpoint of step 2 is skipped: ")


def test_that_there_was_no_checkpoint_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark_ended(tmp_path / "run")
    assert not evaluate(tmp_path / "run").results
    assert "no checkpoint of it was in" in caplog.text


def test_fit_marks_its_end_and_a_training_that_goes_on_removes_the_mark(tmp_path: Path) -> None:
    mark = tmp_path / "training_ended"
    was_marked: list[bool] = []
    noting = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: was_marked.append(mark.exists()))
    for epochs in (1, 2):
        callbacks = [BackupAndRestore(tmp_path), noting]
        make_model().fit(*DATA, epochs=epochs, verbose=0, callbacks=callbacks)
        assert mark.exists()
    assert was_marked == [False, False]

    def fail(epoch: int, logs: Any) -> None:
        raise KeyboardInterrupt

    failing = keras.callbacks.LambdaCallback(on_epoch_begin=fail)
    with pytest.raises(KeyboardInterrupt):
        make_model().fit(*DATA, epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path), failing])
    assert not mark.exists(), "a run that was interrupted may go on"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"max_evaluations": 0}, "max_evaluations"),
        ({"batch_size": 0}, "batch_size"),
        ({"mode": "best"}, "mode"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        SidecarEvaluator(make_model(), DATA, tmp_path, **options)


def test_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    save(tmp_path, step=1, value=1)
    with pytest.raises(InvalidInputError, match=r"monitor=val_loss.*loss.*mae"):
        evaluate(tmp_path, best_model_url=tmp_path / "best", monitor="val_loss")


def test_a_job_has_one_evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 1}}')
    with pytest.raises(InvalidInputError, match="evaluatorCount"):
        SidecarEvaluator(make_model(), DATA, tmp_path)
