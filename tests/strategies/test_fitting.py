"""What strategies add to Keras's trainer beyond the conformance suite."""

import jax
import keras
import numpy as np
import pytest

from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy, epochs
from lockstep.strategies.fitting import current_call, current_layout
from lockstep.strategies.mesh import ReplicatedLayout


def make_linear():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def rows(count):
    return np.arange(3.0 * count, dtype=np.float32).reshape(count, 3) / (3 * count), np.ones((count, 1), np.float32)


def test_a_model_built_outside_the_scope_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with (
        MirroredStrategy(["cpu:0", "cpu:1"]).scope(),
        pytest.raises(InvalidInputError, match="was made outside the scope of MirroredStrategy"),
    ):
        model.compile("sgd", "mse")


def test_a_model_compiled_outside_the_scope_is_refused():
    model = make_linear()
    with (
        MirroredStrategy(["cpu:0", "cpu:1"]).scope(),
        pytest.raises(InvalidInputError, match="was made outside the scope of MirroredStrategy"),
    ):
        model.fit(*rows(4), verbose=0)


def test_a_model_without_a_strategy_trains_as_keras_does():
    model = make_linear()
    model.fit(*rows(4), verbose=0)
    assert model.variables[0].value.sharding.device_set == {jax.devices()[0]}


def test_no_scope_is_left_behind():
    with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = make_linear()
    model.fit(*rows(5), batch_size=4, verbose=0)
    assert current_layout() is None
    assert current_call() is None


def test_a_callback_finds_the_data_of_its_fit():
    data, seen = rows(4), []
    model = make_linear()
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: seen.append(current_call().data))
    model.fit(*data, verbose=0, callbacks=[note])
    assert seen[0] is data[0]


def test_a_callback_may_run_a_model_of_no_strategy():
    inputs, targets = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    own = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    own.compile("sgd", "mse")
    with MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    losses = []

    def run_own(epoch, logs):
        losses.append(own.evaluate(inputs, targets, verbose=0))
        own.fit(inputs, targets, verbose=0)

    model.fit(inputs, targets, epochs=3, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=run_own)])
    assert losses[0] > losses[1] > losses[2]
    assert {len(variable.value.sharding.device_set) for variable in own.variables} == {1}


def test_steps_in_flight_are_bounded_over_several_cpu_devices(monkeypatch):
    waits = []
    block = jax.block_until_ready
    monkeypatch.setattr(epochs.jax, "block_until_ready", lambda leaves: waits.append(len(leaves)) or block(leaves))
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
        with MirroredStrategy(devices).scope():
            make_linear().fit(*rows(16), batch_size=4, verbose=0)
    # Four steps on two devices: each but the first waits for the state that the last one returned. (Keras 3.15 looks at
    # a batch before, which has nothing to wait for.) One device never waits.
    assert [wait > 0 for wait in waits][-4:] == [False, True, True, True]
    assert sum(wait > 0 for wait in waits) == 3


def test_a_batch_is_placed_while_the_one_before_it_is_used():
    placed = []

    def place():
        for batch in range(3):
            placed.append(batch)
            yield batch

    ahead = epochs._one_ahead(place())
    assert [(batch, len(placed)) for batch in ahead] == [(0, 2), (1, 3), (2, 3)]
    assert list(epochs._one_ahead(iter([]))) == []


def test_steps_per_execution_with_an_uneven_end():
    inputs, labels = rows(23)
    predictions = {}
    for steps_per_execution in (1, 2):
        keras.utils.set_random_seed(0)
        with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        model.fit(inputs, labels, batch_size=4, epochs=2, verbose=0, shuffle=False)
        predictions[steps_per_execution] = model.predict(inputs, batch_size=4, verbose=0)
    np.testing.assert_allclose(predictions[1], predictions[2], rtol=1e-6)


@pytest.mark.parametrize(("num_rows", "num_groups"), [(8, 4), (6, 2), (5, 1), (4, 4), (1, 1)])
def test_a_batch_is_laid_over_as_many_devices_as_divide_it(num_rows, num_groups):
    layout = ReplicatedLayout(jax.devices()[:4], name="test")
    batch = {"x": np.arange(2 * num_rows).reshape(num_rows, 2), "none": None, "scalar": np.float32(3)}
    placed = layout.place(batch)
    rows_of_shards = {shard.index[0].indices(num_rows)[:2] for shard in placed["x"].addressable_shards}
    assert len(rows_of_shards) == num_groups
    assert placed["x"].sharding.device_set == set(jax.devices()[:4])
    np.testing.assert_array_equal(placed["x"], batch["x"])
    assert placed["none"] is None
    assert float(placed["scalar"]) == 3


def test_rows_that_are_neither_a_share_nor_all():
    layout = ReplicatedLayout(jax.devices()[:2], name="test")
    with pytest.raises(InvalidInputError, match=r"a batch of 8; received 4; allowed: 8"):
        layout.place(np.zeros((4, 2)), num_rows=8)


def test_what_a_batch_that_does_not_divide_may_cost():
    layout = ReplicatedLayout(jax.devices()[:4], name="test")
    layout.max_repeated_bytes = 1000
    inputs, weights = np.zeros((6, 100), np.float32), np.zeros(6, np.float32)  # 2424 bytes over two groups of four
    layout.place({"x": inputs[:4], "y": None})
    layout.place(np.zeros((4, 10**6), np.float32))  # divides: its share, however large
    layout.place({"x": inputs, "w": weights})  # 1212 bytes instead of 606
    layout.max_repeated_bytes = 605
    message = (
        r"a batch of 6 rows divides over 2 of 4 replicas, and would be repeated 2 times; received '0 MiB more on each "
        r"device.*; take a batch size that 4 divides and leave out the rest of the rows, or raise the limit"
    )
    with pytest.raises(InvalidInputError, match=message):
        layout.place({"x": inputs, "w": weights})


def test_fit_refuses_a_batch_that_costs_too_much():
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    strategy.layout.max_repeated_bytes = 0
    with strategy.scope():
        model = make_linear()
    model.fit(*rows(8), batch_size=4, verbose=0)
    with pytest.raises(InvalidInputError, match="a batch of 3 rows divides over 1 of 2 replicas"):
        model.fit(*rows(7), batch_size=4, verbose=0)
