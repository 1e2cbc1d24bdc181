"""`lockstep.function`: stateful Keras code as one compiled program."""

import gc
import logging
import weakref

import jax
import keras
import numpy as np
import pytest

from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.strategies.loops.gradients import compute_average_loss, value_and_grad
from lockstep.strategies.loops.lifting import function


def test_variables_are_read_and_written():
    counter, step = keras.Variable(np.float32(0)), keras.Variable(np.float32(2))

    @function
    def count(amount):
        counter.assign_add(step * amount)
        return counter.value

    assert float(count(np.float32(1))) == 2
    step.assign(3.0)
    assert float(count(np.float32(2))) == 8
    assert float(counter.value) == 8


def test_a_constant_is_compiled_for_and_an_array_is_not():
    traced = []

    @function
    def scale(array, by):
        traced.append(by)
        return array * by

    ones = np.ones(3, np.float32)
    for by in (2, 2, 2.0, True):
        np.testing.assert_array_equal(scale(ones, by), ones * by)
    assert list(dict.fromkeys(map(repr, traced))) == ["2", "2.0", "True"]
    traced.clear()
    scale(ones + 1, by=2)
    scale(ones + 1, by=2)
    assert len(traced) > 0  # by name is another form than by position
    traced.clear()
    scale(ones + 5, by=2)
    assert traced == []


def test_variables_made_by_the_first_call_are_made_once():
    model = keras.Sequential([keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(1e-4, momentum=0.5)

    @function
    def step(rows):
        loss, gradients = value_and_grad(lambda: keras.ops.sum(model(rows) ** 2), model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    rows = np.ones((4, 3), np.float32)
    model(rows)
    losses = [float(step(rows)) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert len(optimizer.variables) == 2 + 2
    assert int(optimizer.iterations.value) == 5


def test_the_state_stays_on_the_devices_and_its_buffers_are_given_away():
    with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        weight = keras.Variable(np.ones(4, np.float32))

    @function
    def grow():
        weight.assign(weight * 2)

    before = weight.value
    with jax.transfer_guard("disallow"):
        grow()
    assert before.is_deleted()
    assert len(weight.value.sharding.device_set) == 2
    np.testing.assert_array_equal(weight.value, 2 * np.ones(4))


def test_a_function_within_a_function_is_part_of_it():
    total = keras.Variable(np.float32(0))

    @function
    def add(amount):
        total.assign_add(amount)
        return total.value

    @function
    def add_twice(amount):
        add(amount)
        return add(amount)

    assert float(add_twice(np.float32(3))) == 6


def test_a_method_is_lifted_for_its_object():
    class Counter:
        def __init__(self):
            self.count = keras.Variable(np.int32(0))

        @function
        def up(self, by):
            self.count.assign_add(by)
            return self.count.value

    first, second = Counter(), Counter()
    assert [int(first.up(np.int32(2))), int(first.up(np.int32(2))), int(second.up(np.int32(5)))] == [2, 4, 5]


def test_with_parentheses_too():
    @function()
    def double(array):
        """Doubles."""
        return 2 * array

    assert float(double(np.float32(4))) == 8
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")


def test_a_program_keeps_the_layout_that_it_was_compiled_for():
    # Were only its number kept, a strategy made later could have the same one, and would be given this program.
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    double = function(lambda number: 2 * number)
    with strategy.scope():
        double(np.float32(1))
    layout = weakref.ref(strategy.layout)
    del strategy
    gc.collect()
    assert layout() is not None
    del double
    gc.collect()
    assert layout() is None


def test_random_state_goes_on():
    noise = keras.random.SeedGenerator(7)

    @function
    def draw():
        return keras.random.normal((3,), seed=noise)

    first, second = np.asarray(draw()), np.asarray(draw())
    assert not np.allclose(first, second)
    again = keras.random.SeedGenerator(7)
    np.testing.assert_array_equal(first, keras.random.normal((3,), seed=again))
    np.testing.assert_array_equal(second, keras.random.normal((3,), seed=again))


def test_an_argument_that_is_neither_array_nor_constant():
    with pytest.raises(InvalidInputError, match=r"an argument of .*<lambda> is neither.*received 'set'"):
        function(lambda things: None)({1, 2})


def test_a_result_that_is_no_array():
    with pytest.raises(InvalidInputError, match=r"returns something that is no array; received 'str'"):
        function(lambda: "text")()


def test_a_variable_of_another_scope_is_named():
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    outside = keras.Variable(np.float32(1), name="outside")

    @function
    def step():
        return strategy.run(lambda: outside.value * 2)

    with pytest.raises(InvalidInputError, match=r"variable outside was made outside the scope of MirroredStrategy"):
        step()


def test_two_strategies_in_one_function_are_told_so():
    one, other = MirroredStrategy(["cpu:0", "cpu:1"]), MirroredStrategy(["cpu:2", "cpu:3"])

    @function
    def both(rows):
        return one.run(keras.ops.sum, args=(rows,)), other.run(keras.ops.sum, args=(rows,))

    with pytest.raises(InvalidInputError, match=r"both uses more than one strategy; received .*; allowed: one in a"):
        both(np.ones(8, np.float32))


def test_code_that_makes_variables_each_time_is_told_so():
    kept = []

    @function
    def step():
        kept.append(keras.Variable("zeros", shape=(2,), dtype="float32"))
        return kept[-1].value

    with pytest.raises(InvalidInputError, match="uses different variables each time it is traced"):
        step()


def test_many_compilations_are_warned_of(caplog):
    doubled = function(lambda number: np.float32(2) * number)
    with caplog.at_level(logging.WARNING):
        for number in range(8):
            doubled(number)
    assert "was compiled 8 times" in caplog.text


def test_nothing_of_a_failed_call_is_kept():
    weight = keras.Variable(np.float32(1))

    @function
    def step(rows):
        weight.assign(5.0)
        return keras.ops.reshape(rows, (7,))

    with pytest.raises(Exception, match="reshape"):
        step(np.ones(3))
    assert float(weight.value) == 1
    with OneDeviceStrategy("cpu:0").scope():  # no scope of a failed trace is left behind
        assert float(keras.Variable(np.float32(2)).value) == 2


def test_gradients_outside_a_function():
    model = keras.Sequential(
        [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), keras.layers.Dropout(0)]
    )
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)

    def loss():
        outputs = model(rows, training=True)
        return keras.ops.sum(outputs), outputs

    model(rows)
    (value, outputs), gradients = value_and_grad(loss, model.trainable_variables, has_aux=True)
    assert float(value) == rows.sum()
    assert outputs.shape == (2, 1)
    np.testing.assert_array_equal(gradients[0][:, 0], rows.sum(axis=0))


def test_a_loss_that_is_no_scalar():
    weight = keras.Variable(np.ones(3, np.float32))
    with pytest.raises(InvalidInputError, match=r"a loss to differentiate; received 'float32, shape \(3,\)"):
        value_and_grad(lambda: weight * 2, [weight])
    with pytest.raises(InvalidInputError, match="differentiates by Keras variables; received 'float'"):
        value_and_grad(lambda: weight * 2, [1.0])


def test_a_variable_that_is_given_twice():
    weight, other = keras.Variable(np.float32(3)), keras.Variable(np.float32(2))
    loss, gradients = value_and_grad(lambda: weight * weight * other, [weight, other, weight])
    assert (float(loss), [float(gradient) for gradient in gradients]) == (18, [12, 9, 12])


def test_a_model_without_variables_yet():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(InvalidInputError, match="value_and_grad was given no variables"):
        function(lambda rows: value_and_grad(lambda: keras.ops.sum(model(rows)), model.trainable_variables))(np.ones(3))


def test_keras_own_stateless_code_keeps_its_values():
    counter = keras.Variable(np.float32(1))

    @function
    def count():
        counter.assign_add(1.0)
        return counter.value

    with keras.StatelessScope([(counter, np.float32(5))]) as scope:
        assert float(count()) == 6
        assert float(scope.get_current_value(counter)) == 6
        with pytest.raises(InvalidInputError, match=r"strategy\.run was called within a step that Keras runs"):
            OneDeviceStrategy().run(lambda: counter.value)
        with pytest.raises(InvalidInputError, match="value_and_grad was called within a step that Keras runs"):
            value_and_grad(lambda: counter * 2.0, [counter])
    assert float(counter.value) == 1


def test_what_keras_own_scope_does_not_hold_is_read_from_around_it():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    scale = keras.Variable(np.float32(2), trainable=False)  # nothing of the model's

    @function
    def scaled(rows):
        tripled = [(variable, variable.value * 3.0) for variable in model.variables]
        with keras.StatelessScope(tripled), keras.StatelessScope():
            return keras.ops.sum(model(rows)) * scale

    rows = np.ones((1, 2), np.float32)
    assert float(scaled(rows)) == 2 * 3 * 2
    scale.assign(7.0)
    assert float(scaled(rows)) == 2 * 3 * 7
    with keras.StatelessScope([(scale, np.float32(5))]) as scope:
        assert scope.get_current_value(model.variables[0]) is None  # as Keras has it elsewhere


def test_no_batch_is_kept_after_the_call():
    total = function(lambda rows: rows.sum())
    shape = (3, 1237)
    assert float(total(jax.numpy.ones(shape))) == 3 * 1237
    gc.collect()
    assert not [array for array in jax.live_arrays() if array.shape == shape]


def test_weights_of_examples_meet_their_losses():
    losses, weights = np.arange(4, dtype=np.float32), np.array([0.0, 1, 0, 1], np.float32)
    for given in (weights, weights[:, None]):
        assert float(compute_average_loss(losses, given)) == 1
    assert float(compute_average_loss(losses[:, None] * np.ones((4, 2), np.float32), weights)) == 2
    with pytest.raises(InvalidInputError, match="sample_weight; received"):
        compute_average_loss(losses, np.ones((4, 2)))


def test_the_global_batch_size_may_be_an_array():
    average = function(lambda losses, size: compute_average_loss(losses, global_batch_size=size))
    assert float(average(np.ones(4, np.float32), np.int32(8))) == 0.5
    with pytest.raises(InvalidInputError, match="global_batch_size"):
        compute_average_loss(np.ones(4), global_batch_size=0)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_variable_that_a_loss_assigns_keeps_it_and_its_gradient_is_that_of_its_reads(is_compiled):
    """As with `tf.GradientTape`, no gradient flows through what is assigned."""
    weight = keras.Variable(3.0)

    def loss():
        before = weight * weight
        weight.assign(2.0 * weight)
        return before + weight**3

    def step():
        value, (gradient,) = value_and_grad(loss, [weight])
        return value, gradient

    value, gradient = (function(step) if is_compiled else step)()
    assert (float(value), float(gradient), float(weight.value)) == (9.0 + 216.0, 6.0 + 108.0, 6.0)
    weight.assign(float("nan"))

    def repaired():
        weight.assign(1.0)
        return weight**2

    value, (gradient,) = value_and_grad(repaired, [weight])
    assert (float(value), float(gradient), float(weight.value)) == (1.0, 2.0, 1.0)
