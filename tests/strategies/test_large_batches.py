"""Large batches: accumulated ones are one large batch, on one device and under each strategy."""

import itertools

import keras
import numpy as np
import pytest
from keras.optimizers.schedules import PiecewiseConstantDecay

import lockstep
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.training import ScaledLearningRate

CPUS = [f"cpu:{number}" for number in range(4)]
STRATEGIES = {
    "one_device": lambda: OneDeviceStrategy("cpu:0"),
    "mirrored": lambda: MirroredStrategy(CPUS),
    "central_storage": lambda: CentralStorageStrategy(CPUS),
    "sharded": lambda: ShardedStrategy(CPUS, stage=3, min_shard_elements=1),
}
NUM_ROWS, LARGE, NUM_ACCUMULATED, NUM_EPOCHS = 96, 32, 4, 4


def scaled_sgd(num_accumulated):
    rate = ScaledLearningRate(
        PiecewiseConstantDecay([6, 9], [0.05, 0.01, 0.005]),
        batch_size=LARGE // num_accumulated,
        reference_batch_size=8,
        warmup_steps=5,
        accumulation_steps=num_accumulated,
    )
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, gradient_accumulation_steps=steps(num_accumulated))


def clipped_adamw(num_accumulated):
    accumulated = steps(num_accumulated)
    return keras.optimizers.AdamW(0.02, weight_decay=0.1, global_clipnorm=0.5, gradient_accumulation_steps=accumulated)


def lamb(num_accumulated):
    return keras.optimizers.Lamb(0.02, gradient_accumulation_steps=steps(num_accumulated))


def steps(num_accumulated):
    return num_accumulated if num_accumulated > 1 else None


def loss_scaled_adam(num_accumulated):
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.02, gradient_accumulation_steps=steps(num_accumulated)), initial_scale=2.0**10
    )


OPTIMIZERS = {
    "scaled_sgd": scaled_sgd,
    "clipped_adamw": clipped_adamw,
    "lamb": lamb,
    "loss_scaled_adam": loss_scaled_adam,
}


def make_rows():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_ROWS, 12)).astype(np.float32)
    return inputs, np.tanh(inputs @ generator.normal(size=(12, 3))).astype(np.float32)


def make_model(strategy, make_optimizer, num_accumulated):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.LayerNormalization(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((12,)), *layers])
        model.compile(make_optimizer(num_accumulated), "mse")
    return model


def train(strategy, make_optimizer, *, num_accumulated):
    model = make_model(strategy, make_optimizer, num_accumulated)
    options = {"batch_size": LARGE // num_accumulated, "epochs": NUM_EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(*make_rows(), **options)
    return model


def assert_same_weights(model, expected):
    for variable, other in zip(model.trainable_variables, expected.trainable_variables, strict=True):
        found, wanted = np.asarray(variable.value), np.asarray(other.value)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=variable.path)


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        pytest.param(*cell, marks=() if number in (4, 9, 14) else pytest.mark.heavy)
        for number, cell in enumerate(itertools.product(STRATEGIES, OPTIMIZERS))
    ],
)
def test_accumulated_batches_are_one_large_batch_on_one_device(strategy, optimizer):
    make_optimizer = OPTIMIZERS[optimizer]
    model = train(STRATEGIES[strategy](), make_optimizer, num_accumulated=NUM_ACCUMULATED)
    expected = train(OneDeviceStrategy("cpu:0"), make_optimizer, num_accumulated=1)
    assert_same_weights(model, expected)
    assert int(np.asarray(model.optimizer.iterations)) == NUM_EPOCHS * NUM_ROWS // LARGE
    initial = make_model(OneDeviceStrategy("cpu:0"), make_optimizer, 1)
    moved = [np.asarray(a.value) - np.asarray(b.value) for a, b in zip(initial.weights, model.weights, strict=True)]
    assert all(np.abs(values).max() > 0.01 for values in moved)


@pytest.mark.parametrize("strategy", ["mirrored", pytest.param("sharded", marks=pytest.mark.heavy)])
def test_accumulated_batches_of_a_custom_loop_are_one_large_batch(strategy):
    strategy = STRATEGIES[strategy]()
    model = make_model(strategy, clipped_adamw, NUM_ACCUMULATED)
    inputs, targets = make_rows()

    def replica_step(rows, wanted):
        def loss_fn():
            return lockstep.compute_average_loss(keras.ops.mean((model(rows) - wanted) ** 2, axis=1))

        _, gradients = lockstep.value_and_grad(loss_fn, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = lockstep.function(lambda batch: strategy.run(replica_step, batch))
    size = LARGE // NUM_ACCUMULATED
    batches = [(inputs[begin : begin + size], targets[begin : begin + size]) for begin in range(0, NUM_ROWS, size)]
    for _ in range(NUM_EPOCHS):
        for batch in strategy.experimental_distribute_dataset(batches):
            step(batch)
    assert_same_weights(model, train(OneDeviceStrategy("cpu:0"), clipped_adamw, num_accumulated=1))
