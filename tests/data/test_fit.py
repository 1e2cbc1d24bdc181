"""Batches given to Keras's own loops: which records each step of each epoch has."""

from typing import Any

import keras
import numpy as np
import pytest

from lockstep.data import Batches, epoch_order

NUM_RECORDS, BATCH_SIZE, SEED = 22, 4, 5


class Recording(keras.Sequential):
    """A model that writes down the records of each step; run eagerly, a step sees the values."""

    def __init__(self) -> None:
        super().__init__([keras.layers.Dense(1)])
        self.trained: list[list[int]] = []
        self.tested: list[list[int]] = []
        self.compile(optimizer="sgd", loss="mse", metrics=["mae"], run_eagerly=True)

    def train_step(self, state: Any, data: Any) -> Any:
        self.trained.append(data[0][:, 0].astype(int).tolist())
        return super().train_step(state, data)

    def test_step(self, state: Any, data: Any) -> Any:
        self.tested.append(data[0][:, 0].astype(int).tolist())
        return super().test_step(state, data)


def pairs(records: list[int]) -> tuple[np.ndarray, np.ndarray]:
    x = np.array(records, np.float32)[:, None]
    return x, x / NUM_RECORDS


def make(num_records: int = NUM_RECORDS, *, seed: int | None = SEED) -> Batches:
    return Batches(range(num_records), batch_size=BATCH_SIZE, transform=pairs, seed=seed)


def expected(epoch: int, *, num_records: int = NUM_RECORDS, seed: int | None = SEED) -> list[list[int]]:
    order = epoch_order(num_records, seed=seed, epoch=epoch).tolist()
    return [order[start : start + BATCH_SIZE] for start in range(0, num_records, BATCH_SIZE)]


def epochs(*numbers: int) -> list[list[int]]:
    return [batch for number in numbers for batch in expected(number)]


def test_fit_trains_on_epoch_after_epoch() -> None:
    model, batches = Recording(), make()
    history = model.fit(batches, epochs=3, verbose=0)  # the model is built by a look at a batch
    assert model.trained == epochs(0, 1, 2)
    assert len(history.history["loss"]) == 3
    model.fit(batches, epochs=2, verbose=0)
    assert model.trained == epochs(0, 1, 2, 3, 4)
    assert batches.position == (5, 0)


def test_a_compiled_step_sees_the_same() -> None:
    losses: list[list[float]] = []
    for eagerly in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse", run_eagerly=eagerly)
        losses.append(model.fit(make(), epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_validation_reads_its_data_whole_each_time() -> None:
    model, batches, tests = Recording(), make(), make(10, seed=None)
    model.fit(batches, validation_data=tests, epochs=3, verbose=0)
    assert model.trained == epochs(0, 1, 2)
    assert model.tested == expected(0, num_records=10, seed=None) * 3


def test_evaluate_and_predict_read_it_whole() -> None:
    model = Recording()
    model.evaluate(make(10, seed=None), verbose=0)
    assert model.tested == expected(0, num_records=10, seed=None)
    x = np.arange(10, dtype=np.float32)[:, None]
    predicted = model.predict(make(10, seed=None), verbose=0)
    np.testing.assert_allclose(predicted, model.predict(x, verbose=0), rtol=1e-6)


def test_keras_knows_how_many_batches_there_are() -> None:
    totals: list[Any] = []
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: totals.append(note.params["steps"]))
    Recording().fit(make(), verbose=0, callbacks=[note])
    assert totals == [6]


def test_steps_per_epoch_go_on_where_the_last_ones_ended() -> None:
    model = Recording()
    model.fit(make(), epochs=4, steps_per_epoch=3, verbose=0)
    assert model.trained == epochs(0, 1)


def test_an_epoch_that_was_broken_off_is_run_again() -> None:
    model, batches = Recording(), make()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 2

    model.fit(batches, epochs=3, verbose=0, callbacks=[Stop()])
    assert model.trained == expected(0)[:3]
    model.trained.clear()
    model.fit(batches, epochs=1, verbose=0)
    assert model.trained == expected(0)


def test_a_callback_may_seek() -> None:
    model, batches = Recording(), make()
    seek = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: batches.seek(epoch=2))
    model.fit(batches, initial_epoch=2, epochs=4, verbose=0, callbacks=[seek])
    assert model.trained == epochs(2, 3)


def test_a_seek_before_fit_outlasts_the_look() -> None:
    model, batches = Recording(), make()
    batches.seek(epoch=3)
    model.fit(batches, epochs=2, verbose=0)
    assert model.trained == epochs(3, 4)


@pytest.mark.parametrize("num_records", [8, 9])
def test_two_batches_are_enough_to_tell_a_look_from_an_epoch(num_records: int) -> None:
    model = Recording()
    model.fit(make(num_records), epochs=2, verbose=0)
    assert model.trained == expected(0, num_records=num_records) + expected(1, num_records=num_records)
