import json

import keras
import numpy as np
import pytest
from tests.training.test_backup import make_batches, make_linear

from lockstep.heartbeat import HEARTBEAT_VARIABLE
from lockstep.heartbeat import beats as heartbeat
from lockstep.strategies import OneDeviceStrategy
from lockstep.training import BackupAndRestore, Heartbeat


class Kept:
    """Stands where a socket does, and has room for everything."""

    def __init__(self):
        self.beats = []

    def sendto(self, data, address):
        self.beats.append(json.loads(data))


@pytest.fixture
def beats(tmp_path, monkeypatch):
    """Every heartbeat that this process sends."""
    monkeypatch.setattr(heartbeat, "SEND_INTERVAL_S", 0.0)
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "heartbeat"))
    sender = heartbeat.current_sender()
    sender._socket.close()
    sender._socket = kept = Kept()
    return kept.beats


def as_another_program(beats):
    """Forgets what was said: as a program does that is started again."""
    sender = heartbeat.current_sender()
    sender._num_steps = sender._num_examples = 0
    beats.clear()


class Sequential(keras.callbacks.Callback):
    """Has Keras call the callbacks one after the other."""

    def on_train_batch_end(self, batch, logs=None):
        pass


def test_fit_under_a_strategy_says_how_far_it_is(beats):
    make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=2, verbose=0, callbacks=[Sequential()])
    steps = [beat["step"] for beat in beats]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, 12)
    assert [beat["epoch"] for beat in beats if beat["step"] in (6, 7)] == [1, 1, 2, 2]
    assert beats[-1]["metrics"]["loss"] > 0
    num_examples = [beat["numExamples"] for beat in beats]
    assert num_examples == sorted(num_examples)
    assert num_examples[-1] == 2 * make_batches().num_batches * 2


def test_one_that_goes_on_counts_from_where_it_was(beats, tmp_path):
    backup = [BackupAndRestore(tmp_path / "backup", save_freq=4), Sequential()]
    make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=1, verbose=0, callbacks=backup)
    as_another_program(beats)
    make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=2, verbose=0, callbacks=backup)
    assert beats[0]["step"] == 6
    assert beats[-1]["step"] == 12


def test_several_steps_at_once_are_counted(beats):
    model = make_linear(OneDeviceStrategy())
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=3)
    model.fit(make_batches(), verbose=0, callbacks=[Sequential()])
    assert [beat["step"] for beat in beats] == [0, 3, 6, 6]


def test_arrays_are_counted_as_well(beats):
    inputs = np.ones((10, 1), np.float32)
    make_linear(OneDeviceStrategy()).fit(inputs, inputs, batch_size=4, verbose=0, callbacks=[Sequential()])
    assert beats[-1]["numExamples"] == 10


@pytest.mark.parametrize("what", ["the same model", "compiled anew", "another model", "restored", "a loop between"])
def test_a_second_fit_in_a_script_counts_on(beats, tmp_path, what):
    num_steps = make_batches().num_batches
    model = make_linear(OneDeviceStrategy())
    model.fit(make_batches(), verbose=0, callbacks=[Sequential()])
    num_before = num_steps
    callbacks = [Sequential()]
    if what == "compiled anew":
        with OneDeviceStrategy().scope():
            model.compile("sgd", "mse")
    elif what == "another model":
        model = make_linear(OneDeviceStrategy())
    elif what == "restored":
        model = make_linear(OneDeviceStrategy())
        callbacks.append(BackupAndRestore(tmp_path / "backup"))
        model.fit(make_batches(), epochs=2, verbose=0, callbacks=callbacks)
        num_before += 2 * num_steps
        # As in a program that was started again: both find their backups, and the first has nothing left to train.
        as_another_program(beats)
        make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=2, verbose=0, callbacks=callbacks)
        assert [beat["step"] for beat in beats] == [2 * num_steps]
        num_before = 2 * num_steps
        callbacks, model = [Sequential()], make_linear(OneDeviceStrategy())
    elif what == "a loop between":
        heartbeat.report_progress(step=100, num_examples=500)
        num_before = 100
    beats.clear()
    model.fit(make_batches(), verbose=0, callbacks=callbacks)
    assert [beat["step"] for beat in beats] == [num_before + step for step in [*range(num_steps + 1), num_steps]]
    if what != "restored":
        assert beats[0]["numExamples"] >= (500 if what == "a loop between" else 2 * num_steps)


def test_evaluation_and_prediction_are_signs_too(beats):
    inputs = np.ones((8, 1), np.float32)
    model = make_linear(OneDeviceStrategy())
    model.evaluate(inputs, inputs, batch_size=4, verbose=0)
    model.predict(inputs, batch_size=4, verbose=0)
    assert len(beats) == 4
    assert {beat["step"] for beat in beats} == {None}
    assert {beat["numExamples"] for beat in beats} == {None}, "they are not of the training, whose count goes on"


def test_validation_within_fit_is_told_of_the_same_step(beats):
    inputs = np.ones((8, 1), np.float32)
    data = {"validation_data": (inputs, inputs)}
    make_linear(OneDeviceStrategy()).fit(inputs, inputs, batch_size=4, verbose=0, callbacks=[Sequential()], **data)
    assert [beat["step"] for beat in beats] == [0, 1, 2, 2, 2, 2]


def test_a_callback_of_the_users_own_is_the_only_one(beats):
    make_linear(OneDeviceStrategy()).fit(make_batches(), verbose=0, callbacks=[Heartbeat(), Sequential()])
    assert [beat["step"] for beat in beats] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert {beat["numExamples"] for beat in beats} == {None}


def test_without_a_job_nothing_is_added(monkeypatch):
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)
    model = make_linear(OneDeviceStrategy())
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(self)

    callbacks = [Looks()]
    model.fit(make_batches(), verbose=0, callbacks=callbacks)
    assert len(callbacks) == len(seen) == 1
