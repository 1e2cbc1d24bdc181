import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, ShardedStrategy, gradient_sums, step_functions

CPUS = [f"cpu:{number}" for number in range(4)]
layers = keras.layers


@pytest.fixture(autouse=True)
def packed(monkeypatch):
    """Has steps of devices of one process sum in buckets, too. A list that receives the sums of each traced step."""
    traced = []
    find_sums = gradient_sums.find_sums

    def noted(jaxpr, num_rows):
        traced.append(find_sums(jaxpr, num_rows))
        return traced[-1]

    monkeypatch.setattr(step_functions, "sums_in_buckets", lambda layout: layout.num_replicas > 1)
    monkeypatch.setattr(gradient_sums, "find_sums", noted)
    return traced


def convolutions():
    return keras.Sequential([
        keras.Input((8, 8, 3)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.DepthwiseConv2D(2),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(5, kernel_regularizer="l2"),
    ])  # fmt: skip


def sequences():
    inputs = keras.Input((8, 8, 3))
    hidden = layers.Reshape((8, 24))(inputs)
    hidden = layers.LSTM(6, return_sequences=True)(hidden)
    hidden = hidden + layers.MultiHeadAttention(2, 3)(hidden, hidden)
    hidden = layers.LayerNormalization()(hidden)
    hidden = layers.EinsumDense("abc,cd->abd", output_shape=(None, 6), bias_axes="d")(hidden)
    return keras.Model(inputs, layers.Dense(5)(layers.GRU(4)(hidden)))


def shared_weights():
    inputs = keras.Input((8, 8, 3))
    hidden = layers.Dense(6)(layers.Flatten()(inputs))
    same = layers.Dense(6, activation="tanh")
    return keras.Model(inputs, layers.Dense(5)(same(same(hidden))))


def data_of(num_rows=22):
    rng = np.random.default_rng(0)
    return rng.normal(size=(num_rows, 8, 8, 3)).astype(np.float32), rng.integers(0, 5, num_rows, np.int32)


def trained(strategy, build, *, make_optimizer=keras.optimizers.Adam):
    """Returns the values of a model after two epochs, and all losses.

    Each epoch ends with a batch of six rows, which two groups of devices share.
    """
    keras.utils.set_random_seed(0)
    inputs, labels = data_of()
    with strategy.scope():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(), loss, metrics=["accuracy"])
    history = model.fit(inputs, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return [np.asarray(weight.value) for weight in model.weights], history


def assert_same(found, expected, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, expected)


@pytest.mark.parametrize(
    ("build", "num_sums"),
    [
        (convolutions, 5),
        (sequences, 15),  # Keras's GRU sums some of its gradients in its loop, more of them in older versions
        (shared_weights, 8),  # one for each use of the shared layer's weights
    ],
)
def test_a_model_learns_the_same_with_sums_in_buckets(build, num_sums, packed):
    found = trained(MirroredStrategy(CPUS), build)
    assert len(packed) == 2  # one program for each size of a batch
    assert all(len(sums) >= num_sums for sums in packed)
    assert_same(found, trained(OneDeviceStrategy(), build))


def test_loss_scaling_and_accumulated_gradients_stay_exact(packed):
    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))

    found = trained(MirroredStrategy(CPUS), shared_weights, make_optimizer=scaled)
    assert packed[0]
    assert_same(found, trained(OneDeviceStrategy(), shared_weights, make_optimizer=scaled))


class TwoOptimizers(keras.Model):
    """A training step whose second gradients depend on parameters that the first ones have updated."""

    def __init__(self):
        super().__init__()
        self.flatten, self.first, self.second = layers.Flatten(), layers.Dense(4, activation="tanh"), layers.Dense(5)
        self.other = keras.optimizers.SGD(0.1)

    def build(self, shape):
        self.first.build((None, 192))
        self.second.build((None, 4))
        self.other.build(self.first.trainable_variables)
        self.built = True

    def call(self, inputs):
        return self.second(self.first(self.flatten(inputs)))

    def train_step(self, state, data):
        trained, others, optimized, metrics = state
        inputs, labels = data

        def loss_of(trained):
            outputs, _ = self.stateless_call(trained, others, inputs)
            return self.compute_loss(inputs, labels, outputs)

        first = jax.grad(loss_of)(trained)[:2]
        updated, _ = self.other.stateless_apply([v.value for v in self.other.variables], first, trained[:2])
        trained = [*updated, *trained[2:]]
        trained, optimized = self.optimizer.stateless_apply(optimized, jax.grad(loss_of)(trained), trained)
        return {}, (trained, others, optimized, metrics)


def test_gradients_that_depend_on_an_update_stay_exact(packed):
    found = trained(MirroredStrategy(CPUS), TwoOptimizers)
    assert len(packed[0]) == 4  # the second gradients
    assert_same(found, trained(OneDeviceStrategy(), TwoOptimizers))


def test_a_step_with_effects_runs_as_it_is(packed, capfd):
    class Printing(layers.Layer):
        def call(self, inputs):
            jax.debug.print("a row has {}", inputs.shape[1])
            return inputs

    def build():
        return keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), Printing(), layers.Dense(5)])

    found = trained(MirroredStrategy(CPUS), build)
    assert packed == []
    assert "a row has 192" in capfd.readouterr().out
    assert_same(found, trained(OneDeviceStrategy(), build))


def program_of(build, num_rows=8):
    """Returns the compiled training step of a model on several devices."""
    strategy = MirroredStrategy(CPUS)
    inputs, labels = data_of(num_rows)
    with strategy.scope():
        model = build()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(inputs, labels, batch_size=num_rows, verbose=0)
    step = gradient_sums.in_buckets(model.train_step, strategy.layout)
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in group] for group in groups)
    return jax.jit(step).lower(state, strategy.layout.place((inputs, labels))).compile().as_text()


def summed_shapes(program):
    """Returns the shapes of what a program sums over the devices."""
    lines = [line for line in program.splitlines() if " all-reduce(" in line]
    return sorted(shape for line in lines for shape in re.findall(r"f32\[([\d,]*)\]", line.split(" all-reduce(")[0]))


def test_small_gradients_travel_as_one_buffer_and_large_ones_alone(monkeypatch):
    def build():
        return keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(7), layers.Dense(5)])

    assert summed_shapes(program_of(build)) == ["", str(192 * 7 + 7 + 7 * 5 + 5)]  # the loss, and all gradients
    monkeypatch.setattr(gradient_sums, "PACKED_BYTES", 1000)
    found = summed_shapes(program_of(build))
    assert str(7 + 7 * 5 + 5) in found
    assert {"192,7", "7,192"} & set(found)


def test_the_buffer_is_not_concatenated():
    def build():
        return keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(7), layers.Dense(5)])

    assert " concatenate(" not in program_of(build)


def test_steps_of_several_processes_with_copies_on_cpus_sum_in_buckets(monkeypatch):
    layout = MirroredStrategy(CPUS).layout
    assert not gradient_sums.sums_in_buckets(layout)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert gradient_sums.sums_in_buckets(layout)
    assert not gradient_sums.sums_in_buckets(ShardedStrategy(CPUS).layout)


def test_only_marked_gradients_are_moved():
    def step(values, rows):
        (total,) = [jnp.sum(rows, axis=0)]
        (marked,) = gradient_sums.mark_gradients([values @ jnp.sum(rows * 2, axis=0)])
        return total, marked

    program = jax.make_jaxpr(step)(jnp.ones((3, 4)), jnp.ones((8, 4)))
    assert gradient_sums.find_sums(program.jaxpr, 8) == ()
