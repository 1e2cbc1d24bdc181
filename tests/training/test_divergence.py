"""Training that diverges stops, leaves a step out, or goes back to a checkpoint, and says where it began."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from tests.strategies.job_processes import job
from tests.training import diverging_process

from lockstep.data import Batches
from lockstep.errors import DivergenceError, InvalidInputError
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.training import BackupAndRestore, Divergence, divergence_origin

STRATEGIES = {
    "none": None,
    "one device": OneDeviceStrategy,
    "mirrored": lambda: MirroredStrategy(["cpu:0", "cpu:1"]),
    "sharded": lambda: ShardedStrategy(stage=3, min_shard_elements=1),
    "central storage": lambda: CentralStorageStrategy(["cpu:0", "cpu:1"]),
}
NUM_ROWS, BATCH = 40, 4


@keras.saving.register_keras_serializable("tests")
class Logarithm(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.log(inputs)


@keras.saving.register_keras_serializable("tests")
class Root(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.sqrt(keras.ops.abs(inputs))


def rows(*bad):
    generator = np.random.default_rng(1)
    x = generator.uniform(0.5, 1.5, (NUM_ROWS, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    for row in bad:
        x[row, 1] = np.nan
    return x, y


def make_model(strategy=None, *, middle=None, rate=0.05, eagerly=False, steps_per_execution=1):
    def build():
        keras.utils.set_random_seed(3)
        layers = [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
        ]
        layers += [middle] if middle is not None else []
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
        # Not Adam, which turns a rounding error of a gradient near zero into a whole step.
        model.compile(
            keras.optimizers.SGD(rate, momentum=0.9),
            "mse",
            run_eagerly=eagerly,
            steps_per_execution=steps_per_execution,
        )
        return model

    if strategy is None:
        return build()
    with strategy.scope():
        return build()


def state_of(model):
    variables = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
    return [np.asarray(variable.value) for variable in variables]


def train(model, x, y, *callbacks, **options):
    return model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks), **options)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_skipped_step_is_as_if_its_batch_had_not_been_there(name, caplog):
    make = STRATEGIES[name]
    x, y = rows(13, 14)
    model, guard = make_model(make and make()), Divergence("skip")
    with caplog.at_level(logging.WARNING):
        history = train(model, x, y, guard, epochs=2)
    assert guard.skipped == [(0, 3), (1, 3)]
    assert "epoch 1, batch 4: the data is not finite: x, rows 1, 2 of the batch; skipped (1 of 10 steps)" in caplog.text
    assert np.isfinite(history.history["loss"]).all()
    expected = make_model(make and make())
    without = np.r_[0:12, 16:NUM_ROWS]
    for _ in range(2):
        train(expected, x[without], y[without])
    for one, other in zip(state_of(model), state_of(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("eagerly", "steps_per_execution"), [(True, 1), (False, 3)])
def test_a_step_is_skipped_eagerly_and_among_several_of_an_execution(eagerly, steps_per_execution):
    model, guard = make_model(eagerly=eagerly, steps_per_execution=steps_per_execution), Divergence("skip")
    x, y = rows(13, 39)
    train(model, x, y, guard)
    assert guard.skipped == [(0, 3), (0, 9)]
    assert all(np.isfinite(value).all() for value in state_of(model))


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_stops_with_the_state_before_the_bad_step(name):
    make = STRATEGIES[name]
    x, y = rows(21)
    model = make_model(make and make())
    message = (
        r"diverged in epoch 1, batch 6: the data is not finite: x, row 1 of the batch; remove or repair these rows"
    )
    with pytest.raises(DivergenceError, match=message):
        train(model, x, y, Divergence())
    expected = make_model(make and make())
    train(expected, x[:20], y[:20])
    for one, other in zip(state_of(model), state_of(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_layer_whose_output_is_not_finite_is_named(name):
    make = STRATEGIES[name]
    x, y = rows()
    x[30:] *= -1
    layers = [Logarithm(name="logarithm"), keras.layers.Dense(1)]
    strategy = make and make()

    def build():
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile("sgd", "mse")
        return model

    if strategy is None:
        model = build()
    else:
        with strategy.scope():
            layers[:] = [Logarithm(name="logarithm"), keras.layers.Dense(1)]
            model = build()
    with pytest.raises(DivergenceError, match=r"batch 8: the output of layer .*logarithm \(Logarithm\) is not finite"):
        train(model, x, y, Divergence())


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_layer_in_which_a_gradient_stops_being_finite_is_named(name):
    make = STRATEGIES[name]
    x, y = rows()
    x[10] = 0.0  # the root of 0 is 0, and its gradient is infinite
    strategy = make and make()

    def build():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, use_bias=False), Root(name="root"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.01, clipvalue=1.0), "mse")  # which makes an infinite gradient finite
        return model

    if strategy is None:
        model = build()
    else:
        with strategy.scope():
            model = build()
    with pytest.raises(DivergenceError, match=r"batch 3: the gradient is not finite from layer .*root \(Root\) on"):
        train(model, x, y, Divergence())


def test_a_loss_function_that_is_not_finite_is_named():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", lambda true, predicted: keras.ops.mean(keras.ops.log(true - 1e9) + predicted))
    with pytest.raises(DivergenceError, match="the loss is not finite, though the output of the model is"):
        train(model, *rows(), Divergence())


def test_a_layer_with_a_loop_and_a_layer_within_a_layer():
    inner = keras.Sequential([keras.Input((5, 4)), Logarithm(name="inside"), keras.layers.LSTM(3)], name="outer")
    model = keras.Sequential([keras.Input((5, 4)), inner, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 5, 4), np.float32)
    x[5] = -1
    with pytest.raises(DivergenceError, match=r"batch 2: the output of layer .*inside \(Logarithm\) is not finite"):
        train(model, x, np.ones((8, 1)), Divergence())


def test_after_so_many_skips_it_stops():
    x, y = rows(5, 13, 21)
    with pytest.raises(DivergenceError, match="2 steps were skipped before, and max_skips is 2"):
        train(make_model(), x, y, Divergence("skip", max_skips=2))


class Numbers:
    def __len__(self):
        return NUM_ROWS

    def __getitem__(self, index):
        return bytes([index])


def make_batches(strategy, x, y):
    def transform(records):
        numbers = [record[0] for record in records]
        return x[numbers], y[numbers]

    return Batches(Numbers(), batch_size=BATCH, transform=transform, input_context=strategy.input_context)


class Explosion(keras.callbacks.Callback):
    """Makes parameters infinite once, as a rate that is too high does in the end."""

    def __init__(self):
        super().__init__()
        self.has_come = False
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        self.rates.append((epoch, round(float(np.asarray(self.model.optimizer.learning_rate)), 6)))
        if epoch == 2 and not self.has_come:
            self.has_come = True
            kernel = self.model.trainable_variables[0]
            kernel.assign(np.full(kernel.shape, np.inf))


@pytest.mark.parametrize("name", ["one device", "mirrored", "sharded"])
def test_it_goes_back_to_the_checkpoint_with_a_smaller_rate(name, tmp_path, caplog):
    strategy = STRATEGIES[name]()
    x, y = rows()
    model, explosion = make_model(strategy), Explosion()
    guard = Divergence("restore")
    callbacks = [explosion, guard, BackupAndRestore(tmp_path / "checkpoints")]
    with caplog.at_level(logging.WARNING):
        model.fit(make_batches(strategy, x, y), epochs=4, verbose=0, callbacks=callbacks)
    assert re.search(r"epoch 3, batch 1: the output of layer \S*dense\S* \(Dense\) is not finite", caplog.text)
    assert "going back to the latest checkpoint with 0.5 of the learning rate (1 of 3 times)" in caplog.text
    assert [epoch for epoch, _ in explosion.rates] == [0, 1, 2, 2, 3]
    assert float(np.asarray(model.optimizer.learning_rate)) == pytest.approx(0.025)
    assert all(np.isfinite(value).all() for value in state_of(model))


def test_it_does_not_go_back_for_data_and_not_without_a_checkpoint(tmp_path):
    strategy = OneDeviceStrategy()
    x, y = rows(13)
    backup = BackupAndRestore(tmp_path / "one")
    with pytest.raises(DivergenceError, match="the data is not finite"):
        make_model(strategy).fit(make_batches(strategy, x, y), verbose=0, callbacks=[Divergence("restore"), backup])
    x, y = rows()
    explosion = Explosion()
    explosion.on_epoch_begin = lambda epoch, logs=None: explosion.model.trainable_variables[0].assign(
        np.full((3, 8), np.inf)
    )
    callbacks = [explosion, Divergence("restore"), BackupAndRestore(tmp_path / "two")]
    with pytest.raises(DivergenceError, match="there is no checkpoint to go back to"):
        make_model(strategy).fit(make_batches(strategy, x, y), verbose=0, callbacks=callbacks)


def test_a_checkpoint_within_an_epoch_has_no_step_after_a_bad_one(tmp_path):
    strategy = OneDeviceStrategy()
    x, y = rows(13)
    backup = BackupAndRestore(tmp_path, save_freq=4)
    with pytest.raises(DivergenceError, match="batch 4"):
        make_model(strategy).fit(make_batches(strategy, x, y), verbose=0, callbacks=[Divergence(), backup])
    assert not backup.has_checkpoint


def test_an_overflow_that_the_loss_scale_handles_is_no_divergence():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, dtype="mixed_float16"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=2.0**30), "mse")
    train(model, *rows(), Divergence(), epochs=2)
    scale = float(model.optimizer.dynamic_scale.value)
    assert 1 < scale < 2.0**30
    x, y = rows()
    x[20:] = np.nan
    model.optimizer.dynamic_scale.assign(2.0)
    with pytest.raises(DivergenceError, match="batch 6: the data is not finite"):
        train(model, x, y, Divergence())


def test_a_fit_without_it_runs_as_before_after_one_with_it():
    x, y = rows(13)
    model = make_model()
    train(model, x, y, Divergence("skip"))
    train(model, *rows())
    assert all(np.isfinite(value).all() for value in state_of(model))
    train(model, x, y)
    assert not all(np.isfinite(value).all() for value in state_of(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "halt"}, "action; received 'halt'; allowed: stop, skip, restore"),
        ({"max_skips": -1}, "max_skips; received -1"),
        ({"rate_factor": 0.0}, "rate_factor; received 0.0; allowed: above 0, at most 1"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        Divergence(**options)


def test_what_cannot_be_done_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"needs checkpoints; give fit a lockstep.training.BackupAndRestore"):
        train(make_model(), *rows(), Divergence("restore"))
    strategy = OneDeviceStrategy()
    model = make_model(strategy, rate=keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    with pytest.raises(
        InvalidInputError, match="received 'a schedule of learning rates'; allowed: a learning rate that is a number"
    ):
        model.fit(
            make_batches(strategy, *rows()), verbose=0, callbacks=[Divergence("restore"), BackupAndRestore(tmp_path)]
        )

    generator = (rows() for _ in range(3))
    with pytest.raises(InvalidInputError, match="received 'a generator, which can be read once'"):
        make_model(strategy).fit(
            generator,
            steps_per_epoch=2,
            shuffle=False,
            verbose=0,
            callbacks=[Divergence("restore"), BackupAndRestore(tmp_path)],
        )
    model = make_model()
    made_before = keras.callbacks.CallbackList([Divergence()], model=model)
    with pytest.raises(InvalidInputError, match="received 'a CallbackList that was made before"):
        model.fit(*rows(), verbose=0, callbacks=made_before)

    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    own = Own([keras.Input((3,)), keras.layers.Dense(1)])
    own.compile("sgd", "mse")
    with pytest.raises(InvalidInputError, match=r"received 'Own.train_step\(self, data\)'"):
        train(own, *rows(), Divergence())


def run_processes(tmp_path, *, strategy, action, num_processes):
    env = {"STRATEGY": strategy, "JAX_NUM_CPU_DEVICES": "1", "LOCKSTEP_MEETING_TIMEOUT_S": "90"}
    script = Path(diverging_process.__file__)
    with job(tmp_path, [script, action], num_processes=num_processes, env=env) as processes:
        codes = [process.end(200) for process in processes.values()]
        texts = [process.text for process in processes.values()]
    assert not any(codes), "\n".join(texts)
    return texts


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["multi_worker", "sharded"])
def test_all_processes_act_alike(tmp_path, strategy):
    for action, said in (
        ("stop", "error: training has diverged in epoch 1, batch 3"),
        ("skip", "skipped [(0, 2), (1, 2)]"),
    ):
        folder = tmp_path / action
        folder.mkdir()
        for text in run_processes(folder, strategy=strategy, action=action, num_processes=2):
            assert said in text, text
            assert "the data is not finite: x, row 5 of the batch" in text
            assert "finite: True" in text


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_workers_of_parameter_servers_stop(tmp_path):
    env = {**os.environ, "STRATEGY": "parameter_server", "JAX_NUM_CPU_DEVICES": "1"}
    for action, said in (
        ("stop", "error: training has diverged in epoch 1: the loss is nan"),
        ("skip", "allowed: action"),
    ):
        command = [sys.executable, diverging_process.__file__, action]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
        assert (done.returncode == 0) == (action == "stop"), done.stdout + done.stderr
        assert said in done.stdout + done.stderr


def test_what_is_not_enough_memory_for_the_search_does_not_hide_the_divergence(monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")

    monkeypatch.setattr(divergence_origin, "_in_step", fail)
    model = make_model()
    model.trainable_variables[0].assign(np.full((3, 8), np.inf))
    with pytest.raises(DivergenceError, match=r"could not be found \(RESOURCE_EXHAUSTED: Out of memory\)"):
        train(model, *rows(), Divergence())
