"""One copy in host memory: the numbers of one device, and no parameter left on a device that computes."""

import functools
from collections import Counter

import jax
import keras
import numpy as np
import pytest
from tests.strategies import regression
from tests.strategies.regression import BATCH_SIZE, assert_same, make_rows

import lockstep
from lockstep.errors import BackendError, ConfigError, InvalidInputError
from lockstep.strategies import CentralStorageStrategy, OneDeviceStrategy, measure_memory, programs
from lockstep.strategies.host_updates import apply_updates
from lockstep.strategies.updates import Update
from lockstep.training import BackupAndRestore, load_model, save_model

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
"""Keras's variables implement NumPy's ``__array__`` by its older form; saving a model meets it."""

COMPUTING = ("cpu:1", "cpu:2", "cpu:3", "cpu:4")


def central(count=4):
    return CentralStorageStrategy(COMPUTING[:count], "cpu:0")


def make_model(optimizer=None, kind=keras.Sequential, **arguments):
    model = kind(
        [
            keras.Input((12,)),
            keras.layers.Dense(23, use_bias=False, name="first"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, name="second"),
        ]
    )
    model.compile(optimizer or keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], **arguments)
    return model


train = functools.partial(regression.train, make_model=make_model)


@functools.cache
def on_one_device(make_optimizer=None, **arguments):
    return train(OneDeviceStrategy("cpu:0"), make_optimizer, **arguments)[1]


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.heavy), pytest.param(2, marks=pytest.mark.heavy), 4]
)
def test_the_numbers_of_one_device(count):
    assert_same(train(central(count))[1], on_one_device())


@pytest.mark.heavy
def test_a_computing_device_may_keep_the_parameters():
    assert_same(train(CentralStorageStrategy(["cpu:0", "cpu:1"]))[1], on_one_device())


def decayed():
    return keras.optimizers.AdamW(1e-2, global_clipnorm=1.0, use_ema=True, ema_overwrite_frequency=4)


def accumulating():
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.7)
    return keras.optimizers.SGD(schedule, momentum=0.9, gradient_accumulation_steps=3)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), dynamic_growth_steps=5)


@pytest.mark.heavy
@pytest.mark.parametrize("make_optimizer", [decayed, accumulating, scaled])
def test_other_optimizers(make_optimizer):
    assert_same(train(central(3), make_optimizer, num_epochs=3)[1], on_one_device(make_optimizer, num_epochs=3))


def test_several_steps_in_one_call():
    assert_same(train(central(2), steps_per_execution=2)[1], on_one_device())


@pytest.mark.heavy
def test_eager_steps():
    inputs, targets = make_rows()
    outcomes = []
    for strategy in (OneDeviceStrategy("cpu:0"), central(2)):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])
            model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
        model.fit(inputs[:15], targets[:15], batch_size=8, verbose=0)
        loss = model.evaluate(inputs[:8], targets[:8], verbose=0)
        outcomes.append([*map(np.asarray, model.variables), np.array(loss), model.predict(inputs[:8], verbose=0)])
    for value, wanted in zip(*outcomes, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-7)


def arrays_of(shapes):
    return [array for array in jax.live_arrays() if not array.is_deleted() and array.shape in shapes]


def count_new(shapes, before):
    """Counts the live arrays of these shapes that are not among ``before``, by the devices that hold them."""
    known = {id(array) for array in before}
    new = [array for array in arrays_of(shapes) if id(array) not in known]
    return Counter(device.id for array in new for device in array.devices())


def test_no_device_holds_a_parameter_between_steps():
    shapes = {(12, 23), (23, 3)}  # of the kernels, their gradients and the optimizer's moments
    strategy = central()
    seen = []
    # Held, not counted: what earlier tests left may be collected at any time.
    before = arrays_of(shapes)
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(count_new(shapes, before)))
    with strategy.scope():
        model = make_model()
    inputs, targets = make_rows()
    model.fit(inputs, targets, batch_size=BATCH_SIZE, epochs=2, verbose=0, callbacks=[note])
    model.evaluate(inputs, targets, verbose=0)
    model.predict(inputs, verbose=0)
    seen.append(count_new(shapes, before))
    assert len(seen) == 7
    # Two kernels with two moments each, once and on the host.
    assert seen == [Counter({0: 6})] * 7


def test_state_lies_on_the_host_once():
    model, _ = train(central(2), num_epochs=1)
    groups = measure_memory(model)
    assert [group.device_bytes for group in groups] == [{"cpu:0": group.size_bytes} for group in groups]
    assert groups[1].size_bytes > 2 * groups[0].size_bytes


def test_what_is_lent_is_small_for_the_optimizer():
    seen = []
    with programs.watch(seen.append):
        train(central(2), scaled, num_epochs=1)
    (program,) = seen
    trainable, _, optimizer, _, _ = program.args
    assert len(trainable) == 5
    assert [value.shape for value in optimizer] == [()] * 6  # of both optimizers: steps and rates; counter and scale
    assert not program.donates
    assert all(leaf.sharding.device_set == set(central(2).devices) for leaf in jax.tree.leaves(program.args))


def test_gradients_come_as_one_copy():
    strategy = central(2)
    layout = strategy.layout
    lent = layout.to_compute_devices({"a": np.ones(3, np.float32), "none": None})
    assert lent["a"].sharding.device_set == set(strategy.devices)
    stored = layout.to_state_devices(lent)
    assert stored["a"].sharding.device_set == {jax.devices()[0]}
    assert stored["none"] is None


@keras.saving.register_keras_serializable()
class Stepping(keras.Sequential):
    """A step of its own, in Keras's way for JAX."""

    def train_step(self, state, data):
        trainable, non_trainable, optimizer_values, metrics = state
        inputs, targets = data

        def loss(trainable, non_trainable):
            outputs, non_trainable = self.stateless_call(trainable, non_trainable, inputs, training=True)
            return keras.ops.mean(keras.ops.abs(outputs - targets)), non_trainable

        (value, non_trainable), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, non_trainable)
        trainable, optimizer_values = self.optimizer.stateless_apply(optimizer_values, gradients, trainable)
        return {"loss": value}, (trainable, non_trainable, optimizer_values, metrics)


@pytest.mark.heavy
def test_a_step_of_ones_own():
    assert_same(train(central(3), kind=Stepping, num_epochs=2)[1], on_one_device(kind=Stepping, num_epochs=2))


class Rivals(keras.Model):
    """Two halves with an optimizer each, of which one belongs to the model in Keras's way and one does not."""

    def __init__(self):
        super().__init__()
        self.halves = [keras.layers.Dense(4, name="left"), keras.layers.Dense(4, name="right")]
        self.other = keras.optimizers.SGD(0.1, momentum=0.5)
        self.times = 1

    def build(self, input_shape):
        for half in self.halves:
            half.build(input_shape)

    def call(self, inputs):
        return self.halves[0](inputs) - self.halves[1](inputs)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer_values, metrics = state
        inputs, targets = data

        def loss(trainable):
            outputs, _ = self.stateless_call(trainable, non_trainable, inputs)
            return keras.ops.mean((outputs - targets) ** 2)

        value, gradients = jax.value_and_grad(loss)(trainable)
        self.optimizer.stateless_apply(optimizer_values, gradients[:2], trainable[:2])
        for _ in range(self.times):
            self.other.apply([-gradient for gradient in gradients[2:]], self.trainable_variables[2:])
        return {"loss": value}, (trainable, non_trainable, optimizer_values, metrics)


def make_rivals():
    with central(2).scope():
        model = Rivals()
        model.build((None, 3))
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.optimizer.build(model.trainable_variables[:2])
        model.other.build(model.trainable_variables[2:])
    return model


def test_several_optimizers_in_one_step():
    model = make_rivals()
    inputs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    before = [np.asarray(variable.value) for variable in model.trainable_variables]
    targets = np.ones((4, 4), np.float32)

    def loss(values):
        return ((inputs @ values[0] + values[1] - inputs @ values[2] - values[3] - targets) ** 2).mean()

    gradients = jax.grad(loss)(before)
    model.fit(inputs, targets, batch_size=4, verbose=0)
    after = [np.asarray(variable.value) for variable in model.trainable_variables]
    # The first step of Adam goes by the sign of the gradient, that of SGD with momentum by the gradient.
    for old, new, gradient in zip(before[:2], after[:2], gradients[:2], strict=True):
        np.testing.assert_allclose(new, old - 0.1 * np.sign(gradient), atol=1e-4)
    for old, new, gradient in zip(before[2:], after[2:], gradients[2:], strict=True):
        np.testing.assert_allclose(new, old + 0.1 * np.asarray(gradient), atol=1e-5)
    assert int(model.optimizer.iterations) == int(model.other.iterations) == 1


def test_an_optimizer_applied_twice_is_refused():
    model = make_rivals()
    model.times = 2
    with pytest.raises(InvalidInputError, match="applied twice in one step, and this strategy updates once a step"):
        model.fit(np.ones((4, 3)), np.ones((4, 4)), verbose=0)


class Decaying(keras.Sequential):
    def train_step(self, state, data):
        logs, (trainable, *others) = super().train_step(state, data)
        return logs, ([0.9 * value for value in trainable], *others)


def test_a_step_that_changes_parameters_itself_is_refused():
    with central(2).scope():
        model = make_model(kind=Decaying)
    with pytest.raises(InvalidInputError, match=r"train_step changes variable .*first/kernel itself"):
        model.fit(*make_rows(), verbose=0)


@pytest.mark.parametrize("late", ["read", "assigned", "read by another run"])
def test_a_loop_that_goes_on_with_parameters_before_their_update_is_refused(late):
    strategy = central(2)
    with strategy.scope():
        kernel, average = keras.Variable(np.float32(1)), keras.Variable(np.float32(0))
        optimizer = keras.optimizers.SGD(0.5)

    def replica_step():
        kernel.assign(kernel * 2.0)  # before is as good as anywhere else
        _, gradients = lockstep.value_and_grad(lambda: kernel * 0.5, [kernel])
        optimizer.apply_gradients(zip(gradients, [kernel], strict=True))
        if late == "read":
            average.assign(kernel)
        if late == "assigned":
            kernel.assign(np.float32(3))

    @lockstep.function
    def step():
        strategy.run(replica_step)
        if late == "read by another run":
            strategy.run(lambda: kernel.value)

    with pytest.raises(InvalidInputError, match="after an optimizer was applied to it, and this strategy updates"):
        step()
    late = "never"
    lockstep.function(lambda: strategy.run(replica_step))()
    assert float(kernel.value) == 2 - 0.5


def test_a_variable_that_the_optimizer_does_not_know():
    strategy = central(2)
    with strategy.scope():
        known, unknown = keras.Variable(np.ones(2)), keras.Variable(np.ones(2))
        optimizer = keras.optimizers.SGD()
        optimizer.build([known])
    update = Update(optimizer=optimizer, gradients=[np.ones(2)], variables=[unknown])
    with pytest.raises(InvalidInputError, match="is given a variable that it was not built for"):
        apply_updates([update], layout=strategy.layout)


def test_single_batches():
    inputs, targets = make_rows()
    with central(3).scope():
        model = make_model()
    losses = [model.train_on_batch(inputs[:7], targets[:7])[0] for _ in range(9)]
    assert losses[-1] < losses[0]
    assert np.isfinite(model.test_on_batch(inputs[:5], targets[:5])).all()
    assert model.predict_on_batch(inputs[:4]).shape == (4, 3)
    assert int(model.optimizer.iterations) == 9


def test_a_learning_rate_that_changes():
    inputs, targets = make_rows()
    with central(2).scope():
        model = make_model(keras.optimizers.SGD(0.1))
    freeze = keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
    before = np.asarray(model.get_layer("first").kernel)
    model.fit(inputs, targets, verbose=0, callbacks=[freeze])
    np.testing.assert_array_equal(np.asarray(model.get_layer("first").kernel), before)


def test_a_model_moves_between_strategies(tmp_path):
    model, _ = train(central(2), num_epochs=1)
    save_model(model, tmp_path)
    inputs, _ = make_rows()
    predictions = model.predict(inputs, verbose=0)
    for strategy, devices in ((OneDeviceStrategy("cpu:5"), {5}), (central(3), {0})):
        with strategy.scope():
            loaded = load_model(tmp_path)
        assert {device.id for value in loaded.variables for device in value.value.sharding.device_set} == devices
        np.testing.assert_allclose(loaded.predict(inputs, verbose=0), predictions, rtol=1e-4, atol=1e-5)
        assert int(loaded.optimizer.iterations) == 3


@pytest.mark.heavy
def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    inputs, targets = make_rows()

    def fit(strategy, num_epochs, callbacks):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = make_model()
        data = {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0}
        model.fit(inputs, targets, epochs=num_epochs, callbacks=callbacks, **data)
        return [np.asarray(variable.value) for variable in model.variables]

    fit(central(2), 1, [BackupAndRestore(tmp_path)])
    resumed = fit(central(3), 2, [BackupAndRestore(tmp_path)])
    for value, wanted in zip(resumed, fit(OneDeviceStrategy("cpu:0"), 2, []), strict=True):
        assert np.linalg.norm(value - wanted) <= 1e-5 * max(1, np.linalg.norm(wanted))


def test_devices_by_default():
    strategy = CentralStorageStrategy()
    assert list(strategy.devices) == jax.local_devices()
    assert strategy.describe() == "CentralStorageStrategy over 8 x cpu, parameters on cpu:0"
    assert strategy.num_replicas_in_sync == 8
    assert strategy.layout.state_devices == (jax.devices()[0],)


def test_what_is_refused(monkeypatch):
    with pytest.raises(BackendError, match="there is no such device"):
        CentralStorageStrategy(["cpu:1"], "cpu:99")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}')
    with pytest.raises(ConfigError, match=r"keeps parameters in one process's memory; received .*a job of 2 processes"):
        CentralStorageStrategy()
