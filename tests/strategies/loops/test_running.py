"""`strategy.run`: what each replica sees, and what becomes of what it leaves behind."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp

NUM_REPLICAS = 4


@pytest.fixture
def strategy():
    return mirrored(NUM_REPLICAS)


def mirrored(num_replicas):
    return MirroredStrategy([f"cpu:{index}" for index in range(num_replicas)])


def divided(strategy, rows):
    return PerReplica(rows.reshape(strategy.num_replicas_in_sync, -1, *rows.shape[1:]))


def test_each_replica_gets_its_share_and_all_else_whole(strategy):
    rows = np.arange(8, dtype=np.float32)
    results = strategy.run(
        lambda share, whole, by: (share * by, whole.sum()), (divided(strategy, rows), rows), {"by": 2}
    )
    doubled, total = results
    assert [value.tolist() for value in doubled.values] == [[0, 2], [4, 6], [8, 10], [12, 14]]
    assert [float(value) for value in total.values] == [28] * NUM_REPLICAS


def test_values_are_reduced_gathered_and_taken_apart(strategy):
    values = divided(strategy, np.arange(8, dtype=np.float32))
    assert strategy.reduce("sum", values).tolist() == [12, 16]
    assert strategy.reduce(ReduceOp.MEAN, values).tolist() == [3, 4]
    assert float(strategy.reduce("SUM", values, axis=0)) == 28
    assert float(strategy.reduce("MEAN", values, axis=-1)) == 3.5
    assert strategy.gather({"rows": values}, axis=0)["rows"].tolist() == list(range(8))
    assert strategy.gather(PerReplica(np.ones((4, 2, 3))), axis=1).shape == (2, 12)
    parts = strategy.experimental_local_results((values, "same"))
    assert [(part.tolist(), rest) for part, rest in parts][1] == ([2, 3], "same")
    assert strategy.experimental_local_results(7) == (7,)


def test_reductions_that_cannot_be(strategy):
    values = divided(strategy, np.arange(8, dtype=np.float32))
    with pytest.raises(InvalidInputError, match=r"an axis of replicas' values; received 1; allowed: -1 to 0"):
        strategy.reduce("SUM", values, axis=1)
    with pytest.raises(InvalidInputError, match="none: they are scalars"):
        strategy.gather(PerReplica(np.ones(4)), axis=0)
    with pytest.raises(InvalidInputError, match=r"a reduction; received 'MAX'; allowed: SUM, MEAN"):
        strategy.reduce("MAX", values)
    with pytest.raises(InvalidInputError, match="a sum over replicas takes values that replicas have"):
        strategy.reduce("SUM", 3.0)
    assert strategy.reduce("MEAN", 3.0) == 3.0


def test_reduced_within_a_function_and_outside_alike(strategy):
    values = divided(strategy, np.arange(12, dtype=np.float32))

    @lockstep.function
    def inside(values):
        shares = strategy.run(lambda share: share.mean(), args=(values,))
        return strategy.reduce("SUM", shares), strategy.gather(values, axis=0), shares

    total, rows, shares = inside(values)
    assert float(total) == float(strategy.reduce("SUM", shares)) == 22
    assert rows.tolist() == list(range(12))


def test_metrics_add_up_whoever_reads_them(strategy):
    with strategy.scope():
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    labels = np.array([0, 1, 0, 1, 1, 1, 0, 0])
    logits = np.eye(2, dtype=np.float32)[[0, 1, 1, 1, 1, 0, 0, 1]]

    def step(rows, labels, logits):
        mean.update_state(rows)
        accuracy.update_state(labels, logits)

    for _ in range(2):
        shares = [divided(strategy, array) for array in (np.arange(8, dtype=np.float32), labels, logits)]
        strategy.run(step, args=shares)
    assert float(mean.result()) == 3.5
    assert float(mean.count.value) == 16
    assert float(accuracy.result()) == 5 / 8


def test_variables_keep_what_their_aggregation_says(strategy):
    with strategy.scope():
        mean, total, first, plain = (
            keras.Variable(np.float32(10), aggregation=aggregation, trainable=False)
            for aggregation in ("mean", "sum", "only_first_replica", "none")
        )
        count = keras.Variable(np.int32(10), trainable=False)
        flag = keras.Variable(np.bool_(False), trainable=False, dtype="bool")

    def step():
        replica = lockstep.get_replica_context().replica_id_in_sync_group
        for variable in (mean, total, first, plain):
            variable.assign_add(keras.ops.cast(replica + 1, "float32"))
        count.assign_add(replica + 5)
        flag.assign(replica == 0)

    strategy.run(step)
    found = [float(variable.value) for variable in (mean, total, first, plain, count, flag)]
    assert found == [12.5, 20, 11, 12.5, 15, 1]


def test_batch_statistics_are_each_replica_s_own_unless_asked_otherwise(strategy):
    rows = np.arange(16, dtype=np.float32).reshape(8, 2) ** 2
    outputs, moving = {}, {}
    for synchronized in (False, True):
        with strategy.scope():
            norm = keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.5)
            norm.build((None, 2))
        run = strategy.run(lambda share, norm=norm: norm(share, training=True), args=(divided(strategy, rows),))
        outputs[synchronized] = np.asarray(strategy.gather(run, axis=0))
        moving[synchronized] = [np.asarray(variable.value) for variable in norm.non_trainable_variables]
    alone = keras.layers.BatchNormalization(momentum=0.5)
    expected = np.asarray(alone(rows, training=True))
    np.testing.assert_allclose(outputs[True], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moving[True][0], alone.moving_mean.value, rtol=1e-6)
    np.testing.assert_allclose(moving[True][1], alone.moving_variance.value, rtol=1e-6)
    shares = [np.asarray(alone(share, training=True)) for share in rows.reshape(4, 2, 2)]
    np.testing.assert_allclose(outputs[False], np.concatenate(shares), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moving[False][0], moving[True][0], rtol=1e-6)  # the mean of means is the mean
    assert np.all(moving[False][1] < moving[True][1])


def test_synchronized_statistics_heed_a_mask():
    strategy = mirrored(2)
    rows = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 1]], bool)
    with strategy.scope():
        norm = keras.layers.BatchNormalization(synchronized=True)
        norm.build((None, 3, 2))
    shares = [divided(strategy, rows), divided(strategy, mask)]
    found = strategy.gather(strategy.run(lambda rows, mask: norm(rows, training=True, mask=mask), args=shares), axis=0)
    expected = keras.layers.BatchNormalization()(rows, training=True, mask=mask)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_synchronized_statistics_are_those_of_the_batch_under_fit_too():
    losses = []
    for synchronized in (False, True):
        keras.utils.set_random_seed(0)
        with mirrored(2).scope():
            norm = keras.layers.BatchNormalization(synchronized=synchronized)
            model = keras.Sequential([keras.Input((3,)), norm, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        rows = np.arange(18, dtype=np.float32).reshape(6, 3)
        losses.append(model.fit(rows, rows[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"])
        assert keras.layers.BatchNormalization.from_config(norm.get_config()).synchronized is synchronized
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_each_replica_draws_its_own_mask_and_the_seed_repeats_them(strategy):
    def masks(strategy):
        with strategy.scope():
            dropout = keras.layers.Dropout(0.5, seed=3)
        ones = np.ones((50,), np.float32)
        step = lockstep.function(lambda: strategy.run(lambda: dropout(ones, training=True)))
        return [[np.asarray(value) for value in step().values] for _ in range(2)]

    first, second = masks(strategy)
    drawn = {mask.tobytes() for mask in [*first, *second]}
    assert len(drawn) == 2 * NUM_REPLICAS
    np.testing.assert_array_equal(masks(strategy)[1], second)
    one_device = masks(OneDeviceStrategy("cpu:0"))
    np.testing.assert_array_equal(first[0], one_device[0][0])
    np.testing.assert_array_equal(second[0], one_device[1][0])


def test_loss_scaling_in_a_custom_loop():
    found = {}
    rows, labels = np.arange(8, dtype=np.float32).reshape(8, 1) / 8, np.ones((8, 1), np.float32)
    for num_replicas in (1, 4):
        strategy = mirrored(num_replicas)
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
            inner = keras.optimizers.SGD(0.1)
            optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, dynamic_growth_steps=2)

        def step(rows, labels, broken, model=model, optimizer=optimizer):
            def loss():
                errors = keras.ops.squeeze(keras.ops.square(model(rows) - labels), -1)
                return optimizer.scale_loss(lockstep.compute_average_loss(errors)) * broken

            _, gradients = lockstep.value_and_grad(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        train = lockstep.function(lambda *batch, strategy=strategy, step=step: strategy.run(step, args=batch))
        for broken in (1, 1, np.inf, 1):
            train(divided(strategy, rows), divided(strategy, labels), np.float32(broken))
        found[num_replicas] = [np.asarray(value) for value in (*model.weights, optimizer.dynamic_scale)]
        assert int(inner.iterations.value) == 3  # the broken step changed nothing
        assert float(optimizer.dynamic_scale.value) == 4.0  # doubled after two steps, halved by the broken one
    for one, four in zip(found[1], found[4], strict=True):
        np.testing.assert_allclose(four, one, rtol=1e-6)


def test_the_context_says_where_code_runs(strategy):
    assert not lockstep.has_strategy()
    alone = lockstep.get_replica_context()
    assert (alone.num_replicas_in_sync, alone.replica_id_in_sync_group) == (1, 0)
    assert alone.all_reduce("SUM", 5) == alone.all_gather(5, axis=0) == 5
    assert isinstance(lockstep.get_strategy(), OneDeviceStrategy)
    assert lockstep.get_strategy() is lockstep.get_strategy()  # what it has compiled is found again
    with strategy.scope():
        assert lockstep.in_cross_replica_context()
        assert lockstep.get_replica_context() is None
        assert lockstep.get_strategy() is strategy
    seen = []

    def step():
        context = lockstep.get_replica_context()
        seen.append((context.strategy is strategy, context.num_replicas_in_sync, lockstep.in_cross_replica_context()))
        assert lockstep.get_strategy() is strategy
        return context.replica_id_in_sync_group

    assert [int(value) for value in strategy.run(step).values] == [0, 1, 2, 3]
    assert set(seen) == {(True, 4, False)}


def test_a_pure_step_takes_a_state_that_was_placed(strategy):
    step = strategy.compile(lambda state, batch: {"weight": state["weight"] + batch.sum()})
    for weight, received in ((1.0, "float"), (np.ones(2), "ndarray"), (keras.ops.ones(2), "an array on 1 devices")):
        with pytest.raises(InvalidInputError, match=rf"has to lie where the strategy keeps it.*{received}"):
            step({"weight": weight}, np.ones(4))
    assert float(step(strategy.replicate({"weight": 1.0}), np.ones(4))["weight"]) == 5


def test_an_uneven_batch_runs_on_as_many_replicas_as_divide_it(strategy):
    seen = []

    def step(rows):
        seen.append(strategy.num_replicas_in_sync)
        return rows.sum() / strategy.num_replicas_in_sync

    pair = PerReplica(np.arange(6, dtype=np.float32).reshape(2, 3))
    total = strategy.reduce("SUM", strategy.run(step, args=(pair,)))
    assert float(total) == 15 / 2
    assert set(seen) == {2}
    assert strategy.num_replicas_in_sync == 4


def test_what_cannot_be_run(strategy):
    with pytest.raises(InvalidInputError, match=r"divided differently; received 'over \[2, 4\] replicas'"):
        strategy.run(lambda *values: values, args=(PerReplica(np.ones((2, 1))), PerReplica(np.ones((4, 1)))))
    with pytest.raises(InvalidInputError, match="was given another strategy's values"):
        strategy.run(lambda value: value, args=(PerReplica(np.ones((3, 1))),))
    with pytest.raises(InvalidInputError, match=r"strategy.run was called within a replica's step"):
        strategy.run(lambda: strategy.run(lambda: 1))


def test_a_step_run_again_is_not_compiled_again(strategy):
    traced = []

    def step(value):
        traced.append(value)
        return value

    for number in range(3):
        strategy.run(step, args=(np.float32(number),))
    first = len(traced)
    strategy.run(step, args=(np.float32(9),))
    assert len(traced) == first


def test_gradients_pass_through_a_sum_over_replicas(strategy):
    with strategy.scope():
        weight = keras.Variable(np.float32(3))
    shares = divided(strategy, np.arange(4, dtype=np.float32))

    def step(share):
        def loss():
            total = lockstep.get_replica_context().all_reduce("SUM", weight * share[0])
            return total**2  # of the sum over all replicas, on each of them

        return lockstep.value_and_grad(loss, [weight])[1][0]

    # The derivative of the sum of all replicas' losses by a replica's own use of the weight: 4 * 2 * (3 * 6) * share.
    assert [float(value) for value in strategy.run(step, args=(shares,)).values] == [0, 144, 288, 432]


def test_a_custom_loop_adds_the_losses_of_layers_as_fit_does():
    rows, labels = np.arange(24, dtype=np.float32).reshape(8, 3) / 24, np.ones((8, 1), np.float32)
    weights = {}
    for way in ("fit", "run"):
        keras.utils.set_random_seed(0)
        strategy = mirrored(2)
        with strategy.scope():
            layers = [
                keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.1)),
                # Keras 3.13 adds the rows' penalties up, so that their sum over replicas is not that over the batch.
                *([keras.layers.ActivityRegularization(l2=0.1)] if keras.__version__ >= "3.14" else []),
                keras.layers.Dense(1),
            ]
            model = keras.Sequential([keras.Input((3,)), *layers])
            optimizer = keras.optimizers.SGD(0.1)
            model.compile(optimizer, "mse")

        def step(rows, labels, model=model, optimizer=optimizer):
            def loss():
                errors = keras.ops.mean(keras.ops.square(model(rows) - labels), axis=-1)
                return lockstep.compute_average_loss(errors) + lockstep.scale_regularization_loss(model.losses)

            value, gradients = lockstep.value_and_grad(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return value

        if way == "fit":
            model.fit(rows, labels, batch_size=8, epochs=3, verbose=0)
        else:
            train = lockstep.function(lambda *batch, strategy=strategy, step=step: strategy.run(step, args=batch))
            for _ in range(3):
                train(divided(strategy, rows), divided(strategy, labels))
        weights[way] = [np.asarray(variable.value) for variable in model.weights]
    for found, expected in zip(weights["run"], weights["fit"], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_values_of_replicas_are_printed():
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    numbers = strategy.run(lambda: lockstep.get_replica_context().replica_id_in_sync_group * jnp.ones(2))
    assert repr(numbers) == "PerReplica:{\n  0: [0. 0.],\n  1: [1. 1.],\n}"
    jax.eval_shape(lambda value: print(value), numbers)  # values are not known while code is traced
    large = strategy.run(lambda: jnp.ones((1000, 3)))
    assert len(repr(large)) < 1000
