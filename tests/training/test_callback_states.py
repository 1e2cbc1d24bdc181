"""Callbacks go on where they were, and the best checkpoint outlives the others: `BackupAndRestore` in one process."""

import logging

import keras
import numpy as np
import pytest
from tests.training import killed_run
from tests.training.test_backup import StopAt, fit_until, make_batches, make_linear

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.training import BackupAndRestore, load_model, save_model

RATE = 0.01


class Slowing(keras.callbacks.Callback):
    """Halves the learning rate at every third epoch that it sees, and says so in a method that is called late."""

    def __init__(self):
        super().__init__()
        self.num_seen = np.zeros((), np.int64)

    def on_epoch_end(self, epoch, logs=None):
        self.num_seen = self.num_seen + 1
        if self.num_seen % 3 == 0:
            self.model.optimizer.learning_rate = float(np.asarray(self.model.optimizer.learning_rate)) / 2

    def get_state(self):
        return {"num_seen": self.num_seen}

    def set_state(self, state):
        self.num_seen = state["num_seen"]


def make_callbacks(folder):
    return [
        BackupAndRestore(folder / "checkpoints", save_freq=4, keep_best=1, monitor="loss", mode="max"),
        Slowing(),
        keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=2, cooldown=2, factor=0.7),
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras", "loss", mode="max", save_best_only=True),
        keras.callbacks.EarlyStopping("loss", mode="max", patience=6, restore_best_weights=True),
    ]


def make_scaled(strategy):
    """Returns a model whose float16 gradients overflow now and then, so that its loss scale changes."""
    with strategy.scope():
        return killed_run.make_model("mixed_float16", draws=True)


def states(callbacks):
    names = ["best", "wait", "cooldown_counter", "stopped_epoch", "num_seen"]
    return [[getattr(one, name, None) for name in names] for one in callbacks[1:]]


def values_of(model):
    model.jax_state_sync()
    return [np.asarray(variable.value) for variable in [*model.variables, *model.optimizer.variables]]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.heavy
def test_a_run_with_callbacks_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    strategy = OneDeviceStrategy()
    model, callbacks = make_scaled(strategy), make_callbacks(tmp_path / "whole")
    history = model.fit(killed_run.make_batches(strategy), epochs=20, verbose=0, callbacks=callbacks)
    assert history.epoch == list(range(7)), "the first epoch had the largest loss"
    expected = values_of(model), states(callbacks), sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert float(np.asarray(model.optimizer.dynamic_scale.value)) != 2.0**16
    for step in (13, 27):  # of each run, before it is interrupted
        again, callbacks = make_scaled(strategy), make_callbacks(tmp_path / "cut")
        data = killed_run.make_batches(strategy)
        with pytest.raises(InterruptedError):
            again.fit(data, epochs=20, verbose=0, callbacks=[*callbacks, StopAt(step)])
    for expected_epochs in ([4, 5, 6], []):  # the second run finds that the first one was stopped early
        again, callbacks = make_scaled(strategy), make_callbacks(tmp_path / "cut")
        history = again.fit(killed_run.make_batches(strategy), epochs=20, verbose=0, callbacks=callbacks)
        assert history.epoch == expected_epochs
        found = states(callbacks), sorted(path.name for path in (tmp_path / "cut").iterdir())
        assert found == expected[1:]
        assert_same(values_of(again), expected[0])


def test_more_patience_lets_a_stopped_run_go_on(tmp_path, caplog):
    def fit(patience):
        stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=patience)
        model = make_linear(OneDeviceStrategy())
        callbacks = [stopping, BackupAndRestore(tmp_path)]
        return model.fit(make_batches(), epochs=8, verbose=0, callbacks=callbacks).epoch

    assert fit(2) == [0, 1, 2]
    assert fit(2) == []
    assert "EarlyStopping has ended this run after epoch 3; nothing to do" in caplog.text
    assert fit(4) == [3, 4]


def test_a_state_that_is_not_saved_is_named_once(tmp_path, caplog):
    class Counts(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.name, self.num_batches, self.losses = "constant", 0, []

        def on_train_batch_end(self, batch, logs=None):
            self.num_batches += 1
            self.losses.append(logs["loss"])

    model = make_linear(OneDeviceStrategy())
    others = [Counts(), keras.callbacks.CSVLogger(tmp_path / "log.csv"), keras.callbacks.TerminateOnNaN()]
    model.fit(make_batches(), epochs=2, verbose=0, callbacks=[BackupAndRestore(tmp_path / "c"), *others])
    said = [record.getMessage() for record in caplog.records if "is not saved" in record.getMessage()]
    assert len(said) == 1
    assert "state of callback Counts is not saved (losses, num_batches changed)" in said[0]
    assert "give it get_state(), which returns a dictionary, and set_state(state)" in said[0]


def test_states_without_a_callback_and_callbacks_with_one_of_two_methods(tmp_path, caplog):
    model = make_linear(OneDeviceStrategy())
    model.fit(make_batches(), epochs=1, verbose=0, callbacks=[BackupAndRestore(tmp_path), Slowing(), Slowing()])
    model = make_linear(OneDeviceStrategy())
    model.fit(make_batches(), epochs=2, verbose=0, callbacks=[BackupAndRestore(tmp_path), Slowing()])
    assert "the checkpoint has the state of a callback Slowing 2, which this run does not have" in caplog.text

    class Half(keras.callbacks.Callback):
        def get_state(self):
            return {}

    with pytest.raises(InvalidInputError, match="Half has one of two methods; received 'get_state'; allowed: both"):
        make_linear(OneDeviceStrategy()).fit(
            make_batches(), verbose=0, callbacks=[BackupAndRestore(tmp_path / "half"), Half()]
        )


def test_a_callback_list_of_the_user_s_own_is_put_in_order_too(tmp_path):
    model = make_linear(OneDeviceStrategy())
    callbacks = [BackupAndRestore(tmp_path), Slowing()]
    given = keras.callbacks.CallbackList(callbacks, add_history=True, model=model, epochs=2, verbose=0)
    model.fit(make_batches(), epochs=2, verbose=0, callbacks=given)
    again, slowing = make_linear(OneDeviceStrategy()), Slowing()
    again.fit(make_batches(), epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path), slowing])
    assert slowing.num_seen == 3
    assert float(np.asarray(again.optimizer.learning_rate)) == pytest.approx(RATE / 2)


def get_worse(epoch, rate):
    return RATE if epoch < 2 else 100.0


@pytest.mark.parametrize("make_strategy", [OneDeviceStrategy, lambda: MirroredStrategy(["cpu:0", "cpu:1"])])
@pytest.mark.heavy
def test_the_best_model_is_exported(tmp_path, make_strategy):
    inputs = np.linspace(0, 1, 4, dtype=np.float32)[:, None]
    model = make_linear(make_strategy())
    backup = BackupAndRestore(tmp_path / "c", save_freq=2, keep=1, keep_best=1)
    worse = keras.callbacks.LearningRateScheduler(get_worse)
    callbacks = [backup, worse]
    history = model.fit(
        make_batches(), validation_data=(inputs, 2 * inputs), epochs=5, verbose=0, callbacks=callbacks
    ).history["val_loss"]
    assert np.argmin(history) == 1
    best = backup.restore_best(model)
    assert (best.epoch, best.step, best.metrics["val_loss"]) == (2, 12, min(history))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["12", "30", "training_ended"]
    loaded = load_model(save_model(model, tmp_path / "model"))
    assert loaded.evaluate(inputs, 2 * inputs, verbose=0) == pytest.approx(min(history), rel=1e-6)
    elsewhere = make_linear(OneDeviceStrategy())
    BackupAndRestore(tmp_path / "c").restore_best(elsewhere)  # in a program of its own
    assert_same(elsewhere.get_weights(), model.get_weights())


def test_a_best_one_of_what_is_not_there(tmp_path, caplog):
    model = make_linear(OneDeviceStrategy())
    caplog.set_level(logging.WARNING)
    backup = BackupAndRestore(tmp_path, keep_best=1)
    model.fit(make_batches(), epochs=2, verbose=0, callbacks=[backup])
    text = "no checkpoint is kept as the best: epoch 1 has no metric val_loss; it has loss"
    assert [record.getMessage() for record in caplog.records].count(text) == 1
    with pytest.raises(MissingInputError, match="has the metric val_loss; train with keep_best=1"):
        backup.restore_best(model)
    with pytest.raises(MissingInputError):
        BackupAndRestore(tmp_path / "nowhere").restore_best(model)
    with pytest.raises(InvalidInputError, match=r'val_beauty is better when it is higher is not known.*mode="max"'):
        fit_until(1, model, make_batches(), BackupAndRestore(tmp_path / "b", keep_best=1, monitor="val_beauty"))
    for arguments in ({"keep_best": -1}, {"mode": "up"}):
        with pytest.raises(InvalidInputError, match=next(iter(arguments))):
            BackupAndRestore(tmp_path, **arguments)
