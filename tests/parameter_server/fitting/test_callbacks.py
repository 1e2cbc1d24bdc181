"""What callbacks do to a model that workers train: they set its variables, stop the training, and fail."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import (
    BATCH_SIZE,
    STEPS,
    AllThere,
    fit,
    make_model,
    make_rows,
    train_here,
)
from tests.parameter_server.role_threads import RoleThreads

from lockstep.parameter_server import ParameterServerStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_STEPS = 40
INPUTS = np.ones((64, 1), np.float32)
TARGETS = 1e4 * INPUTS


class Counter(keras.layers.Layer):
    """Has a weight that each step of `make_counter` makes larger by one, and another one that nobody trains."""

    def build(self, input_shape: Any) -> None:
        self.number = self.add_weight(shape=(1,), initializer="zeros", name="number")
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False, name="beta")

    def call(self, inputs: Any) -> Any:
        return inputs * self.number + 0.0 * self.beta


def make_counter(optimizer: Any = None) -> Any:
    model = keras.Sequential([keras.Input((1,)), Counter()])
    model.compile(optimizer or keras.optimizers.SGD(1.0), "mae")
    return model


def fit_counter(model: Any, *callbacks: Any) -> None:
    model.fit(INPUTS, TARGETS, batch_size=8, steps_per_epoch=NUM_STEPS, verbose=0, callbacks=list(callbacks))


def test_what_callbacks_change_reaches_the_servers(run_roles: RoleThreads) -> None:
    class Shrinking(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.set_weights([0.5 * value for value in self.model.get_weights()])

    def callbacks() -> list[Any]:
        return [keras.callbacks.LearningRateScheduler(lambda epoch, _: 0.02 / (epoch + 1)), Shrinking()]

    expected, weights = train_here(callbacks=callbacks())
    found, model = run_roles(lambda strategy: fit(strategy, callbacks=callbacks()), num_backup_workers=0)
    np.testing.assert_allclose(found["learning_rate"], expected["learning_rate"])
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    for own, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


def test_a_training_that_is_stopped_has_the_steps_that_it_says(run_roles: RoleThreads) -> None:
    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 3

    def script(strategy: ParameterServerStrategy) -> tuple[int, Any]:
        history, model = fit(strategy, callbacks=[Stopping()], epochs=5)
        first = int(model.optimizer.iterations.numpy())
        model.stop_training = False
        again = model.fit(*ROWS, batch_size=BATCH, steps_per_epoch=STEPS, epochs=1, verbose=0, shuffle=False)
        return len(history["loss"]), (first, int(model.optimizer.iterations.numpy()), len(again.history["loss"]))

    # The same objects for both calls: the workers know the first one's data alone.
    ROWS, BATCH = make_rows(), BATCH_SIZE

    def fit(strategy: ParameterServerStrategy, **options: Any) -> tuple[dict[str, list[float]], Any]:
        with strategy.scope():
            model = make_model()
        history = model.fit(*ROWS, batch_size=BATCH, steps_per_epoch=STEPS, verbose=0, shuffle=False, **options)
        return history.history, model

    num_epochs, (first, second, again) = run_roles(script)
    assert (num_epochs, again) == (1, 1)
    assert 4 <= first <= STEPS, "what had begun is part of it"
    assert second == first + STEPS


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"max_staleness": 1}, marks=pytest.mark.heavy), {"num_backup_workers": 0}], ids=str
)
def test_a_variable_that_is_set_at_each_step_takes_nothing_of_the_others_back(
    run_roles: RoleThreads, options: dict[str, Any]
) -> None:
    class Annealing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.layers[0].beta.assign(batch / 2)

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_counter()
        fit_counter(model, Annealing())
        return model.get_weights(), int(model.optimizer.iterations)

    (number, beta), num_counted = run_roles(script, **options)
    assert (number, num_counted) == (NUM_STEPS, NUM_STEPS)
    assert beta == (NUM_STEPS - 1) / 2


def test_what_is_set_after_a_stop_within_an_epoch_is_what_the_model_has(run_roles: RoleThreads) -> None:
    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                self.model.layers[0].beta.assign(5.0)
                self.model.stop_training = True

        def on_train_end(self, logs: Any = None) -> None:
            numbers.append(float(self.model.get_weights()[0][0]))
            self.model.layers[0].number.assign([-1.0])

    numbers: list[float] = []

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_counter()
        fit_counter(model, Stopping())
        num_first = int(model.optimizer.iterations)
        weights = model.get_weights()
        fit_counter(model)
        return num_first, weights, model.get_weights()

    num_first, first, second = run_roles(script)
    assert numbers == [num_first], "of all steps that count"
    assert first == [-1.0, 5.0]
    assert second == [NUM_STEPS - 1.0, 5.0], "and the next training begins with it"


def test_averages_of_weights_stay_where_a_worker_is_late_in_the_last_step(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_counter(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5))
        fit_counter(model, AllThere(strategy, told=[]))
        return float(model.get_weights()[0][0])

    number = run_roles(script, num_workers=2, num_backup_workers=0)
    assert number == pytest.approx(NUM_STEPS - 1), "half of the last one, a quarter of the one before, and so on"


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.heavy), {"num_backup_workers": 0}], ids=str)
def test_after_the_error_of_a_callback_the_model_has_what_the_servers_have(
    run_roles: RoleThreads, options: dict[str, Any]
) -> None:
    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 4:
                raise OSError("disk full")

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_counter()
        with pytest.raises(OSError, match="disk full"):
            fit_counter(model, AllThere(strategy, told=[]), Failing())
        chief = strategy.member.chief
        assert chief is not None
        served = chief.pull()[id(model.layers[0].number)]
        return float(served[0]), float(model.layers[0].number.value[0]), int(model.optimizer.iterations)

    on_servers, here, num_counted = run_roles(script, num_workers=2, **options)
    assert on_servers == here == num_counted
