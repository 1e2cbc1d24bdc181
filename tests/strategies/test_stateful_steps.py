"""`train_step(self, data)`, as Keras 2 has it: the numbers of one device under every strategy, or a refusal."""

import functools

import jax
import keras
import numpy as np
import pytest
from keras import ops
from tests.strategies.job_processes import job

import lockstep
from lockstep.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    ShardedStrategy,
    TPUStrategy,
)
from lockstep.strategies.stateful_steps import is_stateful
from lockstep.training import BackupAndRestore

NUM_ROWS, BATCH_SIZE, NUM_FEATURES, NUM_LATENT = 22, 8, 6, 3
ROWS = np.random.default_rng(0).normal(size=(NUM_ROWS, NUM_FEATURES)).astype(np.float32)
LABELS = (ROWS.sum(1) > 0).astype(np.int32)

STRATEGIES = {
    "mirrored": lambda: MirroredStrategy(["cpu:0", "cpu:1", "cpu:2", "cpu:3"]),
    "central": lambda: CentralStorageStrategy(["cpu:1", "cpu:2"], "cpu:0"),
    "sharded": lambda: ShardedStrategy(["cpu:0", "cpu:1"]),
    "tpu": TPUStrategy,
}


def dense(*sizes):
    return keras.Sequential([keras.Input((sizes[0],)), *[keras.layers.Dense(size) for size in sizes[1:]]])


class Rows(keras.utils.PyDataset):
    """The rows in one order."""

    def __len__(self):
        return -(-NUM_ROWS // BATCH_SIZE)

    def __getitem__(self, batch):
        return (ROWS[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE],)


class GAN(keras.Model):
    """As Keras's guide has it: no `call`, two optimizers, metrics of its own, and each part learns from the other."""

    def __init__(self):
        super().__init__()
        self.discriminator = dense(NUM_FEATURES, 5, 1)
        self.generator = dense(NUM_LATENT, 4, NUM_FEATURES)
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")
        self.seed_generator = keras.random.SeedGenerator(1337)

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, real):
        if isinstance(real, tuple):
            real = real[0]
        num_rows = ops.shape(real)[0]
        noise = keras.random.normal((num_rows, NUM_LATENT), seed=self.seed_generator)
        both = ops.concatenate([self.generator(noise), real], axis=0)
        labels = ops.concatenate([ops.ones((num_rows, 1)), ops.zeros((num_rows, 1))], axis=0)
        weights = self.discriminator.trainable_weights
        d_loss, gradients = lockstep.value_and_grad(lambda: self.loss_fn(labels, self.discriminator(both)), weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))

        def fool():
            return self.loss_fn(ops.zeros((num_rows, 1)), self.discriminator(self.generator(noise)))

        weights = self.generator.trainable_weights
        g_loss, gradients = lockstep.value_and_grad(fool, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def make_gan(**arguments):
    gan = GAN()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.9), loss, **arguments)
    return gan


class Distiller(keras.Model):
    """A student that learns from a frozen teacher, with metrics of `compile` and a `test_step` of its own."""

    def __init__(self):
        super().__init__()
        self.teacher = dense(NUM_FEATURES, 4, 2)
        self.student = dense(NUM_FEATURES, 2)
        self.teacher.trainable = False

    def compile(self, optimizer, metrics, student_loss_fn):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn

    def call(self, inputs):
        return self.student(inputs)

    def train_step(self, data):
        x, y = data
        taught = ops.softmax(self.teacher(x, training=False))

        def loss_fn():
            predictions = self.student(x, training=True)
            difference = keras.losses.KLDivergence()(taught, ops.softmax(predictions))
            return 0.3 * self.student_loss_fn(y, predictions) + 0.7 * difference, predictions

        weights = self.trainable_variables
        (loss, predictions), gradients = lockstep.value_and_grad(loss_fn, weights, has_aux=True)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {**self.compute_metrics(x, y, predictions), "loss": loss}

    def test_step(self, data):
        x, y = data
        predictions = self.student(x, training=False)
        return {"student_loss": self.student_loss_fn(y, predictions), **self.compute_metrics(x, y, predictions)}

    def predict_step(self, data):
        return ops.softmax(self.student(data[0] if isinstance(data, tuple) else data))


def make_distiller():
    distiller = Distiller()
    distiller.compile(
        keras.optimizers.Adam(0.01), ["accuracy"], keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return distiller


def train(strategy, kind):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make_gan() if kind == "gan" else make_distiller()
    data = (ROWS,) if kind == "gan" else (ROWS, LABELS)
    history = model.fit(*data, batch_size=BATCH_SIZE, epochs=3, verbose=0).history
    found = {f"history {name}": values for name, values in history.items()}
    if kind == "distiller":
        results = model.evaluate(*data, batch_size=BATCH_SIZE, verbose=0, return_dict=True)
        assert set(results) >= {"student_loss", "accuracy"}
        found["evaluation"] = list(results.values())
        found["predictions"] = model.predict(ROWS, batch_size=BATCH_SIZE, verbose=0)
    on_batch = model.train_on_batch(*data, return_dict=True)
    found["on a batch"] = list(on_batch.values())
    for number, variable in enumerate(model.variables):
        found[f"variable {number}"] = np.asarray(variable)
    return model, found


@functools.cache
def on_one_device(kind):
    return train(OneDeviceStrategy("cpu:0"), kind)[1]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("kind", ["gan", "distiller"])
@pytest.mark.heavy
def test_a_step_that_takes_the_batch_alone_gives_the_numbers_of_one_device(name, kind):
    expected = on_one_device(kind)
    model, found = train(STRATEGIES[name](), kind)
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    if name == "central":
        optimizer = model.d_optimizer if kind == "gan" else model.optimizer
        kept = {device for variable in optimizer.variables for device in variable.value.sharding.device_set}
        assert kept == {jax.devices("cpu")[0]}


@pytest.mark.parametrize("kind", ["gan", "distiller"])
@pytest.mark.heavy
def test_the_numbers_are_those_of_the_same_step_run_as_written(kind):
    def run_as_written(epochs):
        keras.utils.set_random_seed(3)
        with OneDeviceStrategy("cpu:0").scope():
            model = make_gan() if kind == "gan" else make_distiller()
            model.run_eagerly = True
        data = (ROWS,) if kind == "gan" else (ROWS, LABELS)
        return model.fit(*data, batch_size=BATCH_SIZE, epochs=epochs, verbose=0).history

    for name, values in run_as_written(3).items():
        np.testing.assert_allclose(on_one_device(kind)[f"history {name}"], values, rtol=1e-4, atol=1e-5)


class Plain(keras.Model):
    """Its layers are made by the first call; one of them adds to the loss, one draws, one keeps statistics."""

    def __init__(self):
        super().__init__()
        self.all = keras.Sequential(
            [
                keras.layers.Dense(5, activity_regularizer="l2", kernel_regularizer="l1"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3, seed=4),
                keras.layers.Dense(2),
            ]
        )

    def call(self, inputs, training=False):
        return self.all(inputs, training=training)


class CallsKeras(Plain):
    """What Keras 2 has a step do that adds something to Keras's own."""

    def train_step(self, data):
        return super().train_step(data)

    def test_step(self, data):
        return super().test_step(data)

    def predict_step(self, data):
        return super().predict_step(data)


@pytest.mark.parametrize("name", ["mirrored", "sharded", "central", "tpu"])
@pytest.mark.heavy
def test_keras_own_step_may_be_called_with_the_batch_alone(name):
    found = {}
    for make in (Plain, CallsKeras):
        keras.utils.set_random_seed(3)
        with STRATEGIES[name]().scope():
            model = make()
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=4.0)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
        weights = np.linspace(0.0, 2.0, NUM_ROWS)
        history = model.fit(ROWS, LABELS, sample_weight=weights, batch_size=BATCH_SIZE, epochs=2, verbose=0).history
        results = model.evaluate(ROWS, LABELS, sample_weight=weights, batch_size=BATCH_SIZE, verbose=0)
        found[make] = [*history.values(), results, model.predict(ROWS, batch_size=BATCH_SIZE, verbose=0)]
    assert len(found[Plain]) == len(found[CallsKeras]) == 5
    for own, plain in zip(found[CallsKeras], found[Plain], strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mirrored", "central"])
@pytest.mark.heavy
def test_all_optimizers_of_a_model_are_backed_up(name, tmp_path):
    strategy = STRATEGIES[name]()

    def train_to(epochs, folder):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = make_gan()
        callbacks = [] if folder is None else [BackupAndRestore(folder)]
        model.fit(Rows(), epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        return [np.asarray(one.value) for one in [*model.variables, *model.d_optimizer.variables]]

    train_to(1, tmp_path)
    for found, expected in zip(train_to(3, tmp_path), train_to(3, None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.heavy
def test_two_processes_give_the_numbers_of_one_device(tmp_path):
    env = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "LOCKSTEP_MEETING_TIMEOUT_S": "90", "FOLDER": str(tmp_path)}
    with job(tmp_path, ["-m", "tests.strategies.stateful_process"], num_processes=2, env=env) as processes:
        for process in processes.values():
            assert process.end() == 0, process.text
    for kind in ("gan", "distiller"):
        for rank in (0, 1):
            found = np.load(tmp_path / f"{kind}{rank}.npz")
            for key, value in on_one_device(kind).items():
                np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_steps_of_both_forms_are_told_apart():
    class Keras3(keras.Model):
        def train_step(self, state, data):
            raise AssertionError("asked for its form alone")

        def test_step(self, *args):
            raise AssertionError("asked for its form alone")

        def predict_step(self, data, verbose=False):
            raise AssertionError("asked for its form alone")

    model = Keras3()
    assert [is_stateful(model, kind) for kind in ("train", "test", "predict")] == [False, False, True]
    assert [is_stateful(dense(2, 1), kind) for kind in ("train", "test", "predict")] == [False] * 3
