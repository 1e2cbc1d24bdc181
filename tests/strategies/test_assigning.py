"""Variables that are assigned to each other do not share what a step gives away."""

import keras
import numpy as np
import pytest
from tests.strategies.setups import SETUPS

import lockstep

ROWS = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
TARGETS = ROWS[:, :1]


def small_net():
    return keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, name="hidden"), keras.layers.Dense(1)])


def weights(model):
    return [np.array(variable.value) for variable in model.variables]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def assert_moved(found, before):
    assert any((one != other).any() for one, other in zip(found, before, strict=True))


def assign_variables(target, online):
    for to, of in zip(target.variables, online.variables, strict=True):
        to.assign(of)


def assign_values(target, online):
    for to, of in zip(target.variables, online.variables, strict=True):
        to.assign(of.value)


# One of each kind of layout.
KINDS = [setup for setup in SETUPS if setup.name in ("one_device", "mirrored", "central_storage", "sharded_3")]


@pytest.fixture(params=KINDS, ids=lambda setup: setup.name)
def strategy(request):
    setup = request.param
    return setup.make(min(2, setup.most_replicas))


@pytest.mark.parametrize(
    ("assign", "writes_target"), [(assign_variables, False), (assign_values, False), (assign_values, True)]
)
def test_a_target_network_keeps_what_it_was_given(strategy, assign, writes_target):
    with strategy.scope():
        online, target = small_net(), small_net()
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(online.trainable_variables)

    @lockstep.function
    def step(rows, targets):
        def on_each(rows, targets):
            def loss_of():
                errors = (online(rows) - 0.5 * keras.ops.stop_gradient(target(rows)) - targets) ** 2
                return lockstep.compute_average_loss(errors[:, 0])

            loss, gradients = lockstep.value_and_grad(loss_of, online.trainable_variables)
            optimizer.apply_gradients(zip(gradients, online.trainable_variables, strict=True))
            return loss

        loss = strategy.run(on_each, args=(rows, targets))
        if writes_target:
            for variable in target.variables:
                variable.assign(-variable)
        return loss

    for _ in range(3):
        assign(target, online)
        before = weights(online)
        assert_equal(weights(target), before)
        step(ROWS, TARGETS)
        assert_equal(weights(target), [-array for array in before] if writes_target else before)
        assert_moved(weights(online), before)


def test_a_compiled_assignment_gives_no_buffer_to_two(strategy):
    with strategy.scope():
        online, target = small_net(), small_net()
        online.compile("sgd", "mse")

    copy = lockstep.function(lambda: assign_variables(target, online))
    for _ in range(2):
        copy()
        before = weights(online)
        assert_equal(weights(target), before)
        online.fit(ROWS, TARGETS, verbose=0)
        assert_equal(weights(target), before)
        assert_moved(weights(online), before)


def test_the_model_that_was_copied_from_is_there_after_fit(strategy):
    with strategy.scope():
        online, target = small_net(), small_net()
        target.compile("sgd", "mse")
    assign_variables(target, online)
    before = weights(online)
    target.fit(ROWS, TARGETS, verbose=0)
    assert_equal(weights(online), before)
    assert_moved(weights(target), before)
