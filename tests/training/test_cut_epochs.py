"""However ``fit`` ends within an epoch, the next run goes on where it stood: its numbers are those of one uncut run."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from tests.training.test_backup import make_batches, make_linear

from lockstep.checkpoints import CheckpointDirectory
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.training import BackupAndRestore

NUM_EPOCHS, NUM_STEPS = 3, 6
INPUTS = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
CUT_AT = NUM_STEPS + 3
"""How many steps the first run takes: half of the second epoch."""


class After(keras.callbacks.Callback):
    """Does something once, after so many steps; or in the validation that follows them."""

    def __init__(self, end: Callable[[Any], None], *, step: int = CUT_AT, when: str = "train") -> None:
        super().__init__()
        self._end, self._when = end, when
        self._left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if not self._left and self._when == "train":
            self._end(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._left and self._when == "begin":
            self._end(self.model)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._left <= 0 and self._when == "validation":
            self._end(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._left <= 0 and self._when == "epoch":
            self._end(self.model)


def stop(model: Any) -> None:
    model.stop_training = True


def fail(error: type[BaseException]) -> Callable[[Any], None]:
    def end(model: Any) -> None:
        raise error

    return end


ENDS: dict[str, Callable[[], After]] = {
    "stop_training": lambda: After(stop),
    "stop_training at the last step": lambda: After(stop, step=2 * NUM_STEPS),
    "stop_training in validation": lambda: After(stop, when="validation"),
    "stop_training at an epoch's end": lambda: After(stop, when="epoch"),
    "an error": lambda: After(fail(OSError)),
    "an error before a step": lambda: After(fail(OSError), when="begin"),
    "an error in validation": lambda: After(fail(OSError), when="validation"),
    "an error at an epoch's end": lambda: After(fail(OSError), when="epoch"),
    "Ctrl-C": lambda: After(fail(KeyboardInterrupt)),
    "SIGTERM's SystemExit": lambda: After(fail(SystemExit)),
}


def fit(model: Any, kind: str, *callbacks: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"x": make_batches()}
    if kind == "arrays":
        given = {"x": INPUTS, "y": 2 * INPUTS, "batch_size": 2}
    validation = {"validation_data": (INPUTS, INPUTS), "validation_batch_size": 12}
    return model.fit(**given, **validation, epochs=NUM_EPOCHS, verbose=0, callbacks=list(callbacks), **options)


def values_of(model: Any) -> list[np.ndarray]:
    return [np.asarray(variable.value) for variable in (*model.variables, *model.optimizer.variables)]


@functools.cache
def uncut(kind: str) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    """Returns the values and the history of a run that nobody cut."""
    model = make_linear(OneDeviceStrategy())
    with tempfile.TemporaryDirectory() as directory:
        history = fit(model, kind, BackupAndRestore(directory)).history
    return values_of(model), history


WAYS = [("Batches", 1, True), ("Batches", 2, False), ("Batches", "epoch", True), ("arrays", "epoch", False)]
"""The kind of data, how often it is saved, and whether the backup is the first of the callbacks."""


LIGHT = (
    "stop_training",
    "stop_training at the last step",
    "an error before a step",
    "an error in validation",
    "an error at an epoch's end",
    "Ctrl-C",
)
# Each of these ends runs with one of the ways in `make test`, and each way with one of them at least.
CELLS = [
    pytest.param(end, *way, marks=() if end in LIGHT and index == number % len(WAYS) else pytest.mark.product)
    for number, end in enumerate(ENDS)
    for index, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("end", "kind", "save_freq", "is_first"), CELLS)
def test_a_run_that_was_cut_ends_with_the_numbers_of_one_that_was_not(
    tmp_path: Any, end: str, save_freq: Any, kind: str, is_first: bool
) -> None:
    values, histories = uncut(kind)
    cut = make_linear(OneDeviceStrategy())
    callbacks = [BackupAndRestore(tmp_path / "cut", save_freq=save_freq), ENDS[end]()]
    try:
        fit(cut, kind, *(callbacks if is_first else callbacks[::-1]))
    except (OSError, KeyboardInterrupt, SystemExit):
        assert not end.startswith("stop_training")
    taken = int(cut.optimizer.iterations.value)
    assert taken < NUM_EPOCHS * NUM_STEPS

    again = make_linear(OneDeviceStrategy())
    steps: list[int] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    history = fit(again, kind, BackupAndRestore(tmp_path / "cut", save_freq=save_freq), note)
    for found, expected in zip(values_of(again), values, strict=True):
        np.testing.assert_array_equal(found, expected)
    for name, losses in history.history.items():
        np.testing.assert_allclose(losses, histories[name][-len(losses) :], rtol=1e-6, err_msg=name)
    if end == "stop_training" and kind == "Batches":
        assert len(steps) == NUM_EPOCHS * NUM_STEPS - CUT_AT, "the very next batch is the next one"


@pytest.mark.parametrize(
    ("make_strategy", "save_freq", "bad"),
    [
        (OneDeviceStrategy, 1, np.nan),
        (OneDeviceStrategy, "epoch", np.inf),
        (lambda: MirroredStrategy(["cpu:0", "cpu:1"]), 1, np.inf),
        (lambda: MirroredStrategy(["cpu:0", "cpu:1"]), "epoch", np.nan),
    ],
)
@pytest.mark.heavy
def test_a_state_that_is_not_finite_is_never_the_newest_backup(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, bad: float, save_freq: Any, make_strategy: Any
) -> None:
    def break_it(model: Any) -> None:
        model.optimizer.learning_rate = bad

    model = make_linear(make_strategy())
    callbacks = [BackupAndRestore(tmp_path, save_freq=save_freq), keras.callbacks.TerminateOnNaN()]
    fit(model, "Batches", *callbacks, After(break_it))
    assert not np.isfinite(model.get_weights()[0]).all()
    assert "is not saved" in caplog.text
    with CheckpointDirectory(tmp_path) as directory:
        state = directory.restore()
    assert state is not None
    assert state.non_finite_variables() == frozenset()
    assert state.position.step == (CUT_AT - 1 if save_freq == 1 else NUM_STEPS)  # the last one before it broke

    again = make_linear(make_strategy())
    history = fit(again, "Batches", BackupAndRestore(tmp_path, save_freq=save_freq))
    assert np.isfinite(history.history["loss"]).all()
    assert np.isfinite(again.get_weights()[0]).all()


class Bounded(keras.layers.Layer):
    """Has a constant that is infinite."""

    def build(self, input_shape: Any) -> None:
        self.bound = self.add_weight(shape=(), initializer=keras.initializers.Constant(np.inf), trainable=False)

    def call(self, inputs: Any) -> Any:
        return keras.ops.minimum(inputs, self.bound)


def test_what_was_infinite_from_the_beginning_says_nothing_of_the_training(tmp_path: Any) -> None:
    with OneDeviceStrategy().scope():
        model = keras.Sequential([keras.Input((1,)), Bounded(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model, "Batches", BackupAndRestore(tmp_path))
    with CheckpointDirectory(tmp_path) as directory:
        assert directory.latest_step() == NUM_EPOCHS * NUM_STEPS


@pytest.mark.parametrize(
    ("steps_per_epoch", "is_repeated"),
    [
        pytest.param(4, False, marks=pytest.mark.heavy),
        pytest.param(5, True, marks=pytest.mark.heavy),
        (7, False),
        (13, True),
    ],
)
def test_any_number_of_steps_is_followed_through_the_data(
    tmp_path: Any, steps_per_epoch: int, is_repeated: bool
) -> None:
    def data() -> Any:
        return make_batches().repeat() if is_repeated else make_batches()

    options: dict[str, Any] = {"steps_per_epoch": steps_per_epoch, "epochs": 4, "verbose": 0}
    whole = make_linear(OneDeviceStrategy())
    whole.fit(data(), **options, callbacks=[BackupAndRestore(tmp_path / "whole")])
    cut = make_linear(OneDeviceStrategy())
    end = After(stop, step=2 * steps_per_epoch + 2)
    cut.fit(data(), **options, callbacks=[BackupAndRestore(tmp_path / "cut"), end])
    again = make_linear(OneDeviceStrategy())
    history = again.fit(data(), **options, callbacks=[BackupAndRestore(tmp_path / "cut")])
    assert history.epoch == [2, 3]
    for found, expected in zip(values_of(again), values_of(whole), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_steps_that_run_together_are_counted_one_by_one(tmp_path: Any) -> None:
    def make() -> Any:
        model = make_linear(OneDeviceStrategy())
        model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=4)
        return model

    whole, cut, again = make(), make(), make()
    fit(whole, "Batches", BackupAndRestore(tmp_path / "whole"))
    fit(cut, "Batches", BackupAndRestore(tmp_path / "cut"), After(stop, step=3))  # the third time: after ten steps
    assert int(cut.optimizer.iterations.value) == 10
    fit(again, "Batches", BackupAndRestore(tmp_path / "cut"))
    for found, expected in zip(values_of(again), values_of(whole), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_data_that_does_not_know_its_place_is_said_to_begin_the_epoch_again(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = make_linear(OneDeviceStrategy())
    fit(model, "arrays", BackupAndRestore(tmp_path), After(stop))
    assert "epoch 2 was stopped early; the next run restarts this epoch" in caplog.messages
    with CheckpointDirectory(tmp_path) as directory:
        assert directory.latest_step() == NUM_STEPS


def test_a_model_without_a_strategy_is_cut_alike(tmp_path: Any) -> None:
    def make() -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    for kind, number in (("Batches", CUT_AT), ("arrays", NUM_STEPS), ("arrays", CUT_AT)):
        whole, cut, again = make(), make(), make()
        fit(whole, kind)
        directory = tmp_path / f"{kind}-{number}"
        keras.utils.set_random_seed(0)
        fit(cut, kind, BackupAndRestore(directory), After(stop, step=number), shuffle=False)
        fit(again, kind, BackupAndRestore(directory), shuffle=False)
        assert int(again.optimizer.iterations.value) == NUM_EPOCHS * NUM_STEPS
