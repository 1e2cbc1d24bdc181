"""Loops over models that are built by the loss's first call, as a tape's block builds them."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, ShardedStrategy

ROWS = np.random.default_rng(0).normal(size=(3, 8, 3)).astype("float32")
DEVICES = ["cpu:0", "cpu:1"]
STRATEGIES = {
    "none": lambda: None,
    "mirrored": lambda: MirroredStrategy(DEVICES),
    "central": lambda: CentralStorageStrategy(DEVICES),
    "sharded": lambda: ShardedStrategy(DEVICES),
}


class Model(keras.Model):
    def __init__(self, seed):
        super().__init__()
        self.first = keras.layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(seed))
        self.normalization = keras.layers.BatchNormalization()
        self.last = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed + 1))

    def call(self, inputs, training=False):
        return self.last(self.normalization(self.first(inputs), training=training))


def _losses(strategy, *, built, is_compiled=True):
    """Returns the losses of three steps of two models, those of `built` built before."""
    with nullcontext() if strategy is None else strategy.scope():
        models = Model(1), Model(3)
        optimizer = keras.optimizers.Adam(0.01)
        for number in built:
            models[number](ROWS[0])

    def variables():
        return models[0].trainable_variables + models[1].trainable_variables

    def step(rows):
        def loss_fn():
            results = models[1](models[0](rows, training=True), training=True)
            return lockstep.compute_average_loss(keras.ops.sum(keras.ops.square(results - rows), axis=1))

        loss, gradients = lockstep.value_and_grad(loss_fn, variables)
        assert len(gradients) == 12
        optimizer.apply_gradients(zip(gradients, variables(), strict=True))
        return loss

    def train(rows):
        return step(rows) if strategy is None else strategy.reduce("SUM", strategy.run(step, args=(rows,)))

    if is_compiled:
        train = lockstep.function(train)
    data = ROWS if strategy is None else strategy.experimental_distribute_dataset(list(ROWS))
    return [float(train(rows)) for rows in data]


LIGHT = ("sharded",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LIGHT else pytest.mark.heavy) for name in STRATEGIES]
)
def test_the_first_call_of_a_loss_builds_its_models(name):
    strategy = STRATEGIES[name]()
    expected = _losses(strategy, built=(0, 1))
    for built in ((), (0,), (1,)):
        assert _losses(strategy, built=built) == pytest.approx(expected, rel=1e-5), built
    assert _losses(strategy, built=(), is_compiled=False) == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_makes_no_variables_is_refused():
    with pytest.raises(InvalidInputError, match="given no variables; received 'an empty list"):
        lockstep.value_and_grad(lambda: keras.ops.sum(ROWS), list)
