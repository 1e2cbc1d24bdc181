"""Loops of the user's own, over servers and workers that are threads of the test: one script in every role."""

from __future__ import annotations

import threading
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
from tests.parameter_server.fitting.test_exactness import assert_close
from tests.parameter_server.role_threads import TIMEOUT_S, RoleThreads

import lockstep
from lockstep.parameter_server import ClusterCoordinator, ParameterServerStrategy
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.strategies import OneDeviceStrategy

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BATCH_SIZE = 16
NUM_STEPS = 50
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

own = threading.local()
"""What a script would keep in its module: here each role has its own."""


def make_model(optimizer: Any, *, is_small: bool = False) -> None:
    def init(seed: int) -> Any:
        return keras.initializers.GlorotUniform(seed=seed)

    layers: list[Any] = []
    if not is_small:
        layers += [
            keras.layers.Dense(12, activation="relu", kernel_initializer=init(1)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2, seed=3),
        ]
    layers.append(keras.layers.Dense(3, kernel_initializer=init(2)))
    own.model = keras.Sequential([keras.Input((8,)), *layers])
    own.optimizer = optimizer
    optimizer.build(own.model.trainable_variables)
    own.accuracy = keras.metrics.SparseCategoricalAccuracy()
    own.num_rows = keras.Variable(0, dtype="int32", trainable=False)


def batches_of(worker: int, num_batches: int = NUM_STEPS) -> Any:
    random = np.random.default_rng(worker)
    for _ in range(num_batches):
        inputs = random.normal(size=(BATCH_SIZE, 8)).astype(np.float32)
        yield inputs, inputs[:, :3].argmax(1).astype(np.int32)


def own_batches(context: Any) -> Any:
    return batches_of(context.input_pipeline_id)


def take_step(inputs: Any, targets: Any) -> Any:
    def loss_fn() -> Any:
        logits = own.model(inputs, training=True)
        return LOSS(targets, logits), logits

    variables = own.model.trainable_variables
    (loss, logits), gradients = lockstep.value_and_grad(loss_fn, variables, has_aux=True)
    own.accuracy.update_state(targets, logits)
    own.num_rows.assign_add(len(targets))
    own.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


@lockstep.function
def compiled_step(iterator: Any) -> Any:
    return take_step(*next(iterator))


@lockstep.function
def compiled_on_batch(inputs: Any, targets: Any) -> Any:
    return take_step(inputs, targets)


def plain_step(iterator: Any) -> Any:
    return compiled_on_batch(*next(iterator))


def eager_step(iterator: Any) -> Any:
    return take_step(*next(iterator))


def replica_step(iterator: Any) -> Any:
    return own.strategy.run(take_step, args=next(iterator))


compiled_replica_step = lockstep.function(replica_step)
"""The same name: it is what workers find by it."""


def values_here() -> dict[str, np.ndarray[Any, Any]]:
    variables = [*own.model.variables, *own.accuracy.variables]
    return {one.path: np.array(one.value) for one in variables if one.dtype == "float32"}


def train_here(optimizer: Any, *, is_small: bool) -> tuple[dict[str, np.ndarray[Any, Any]], list[float]]:
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        make_model(optimizer, is_small=is_small)
        losses = [float(compiled_on_batch(*batch)) for batch in batches_of(0)]
        return values_here(), losses


@pytest.mark.parametrize(
    ("step", "num_servers", "is_small"),
    [
        pytest.param(compiled_step, 2, True, id="small"),
        pytest.param(compiled_step, 2, False, id="compiled", marks=pytest.mark.heavy),
        pytest.param(plain_step, 1, False, id="plain", marks=pytest.mark.heavy),
        pytest.param(compiled_replica_step, 1, False, id="run", marks=pytest.mark.heavy),
    ],
)
def test_fifty_steps_of_one_worker_are_those_of_one_device(
    run_roles: RoleThreads, step: Any, num_servers: int, is_small: bool
) -> None:
    expected, losses = train_here(keras.optimizers.Adam(0.01, global_clipnorm=0.5), is_small=is_small)

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        own.strategy = strategy
        with strategy.scope():
            make_model(keras.optimizers.Adam(0.01, global_clipnorm=0.5), is_small=is_small)
        iterator = iter(coordinator.create_per_worker_dataset(own_batches))
        found: list[float] = []
        for _ in range(NUM_STEPS):
            found.append(float(coordinator.schedule(step, args=(iterator,)).fetch()))
            coordinator.join()
        return values_here(), found, int(own.num_rows.value)

    options: dict[str, Any] = {"variable_partitioner": FixedShardsPartitioner(2)} if num_servers > 1 else {}
    values, found, num_rows = run_roles(script, num_servers=num_servers, **options)
    assert_close(values, expected)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    assert num_rows == NUM_STEPS * BATCH_SIZE


@pytest.mark.heavy
def test_code_that_is_not_compiled_trains_as_well(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.1))
        iterator = iter(coordinator.create_per_worker_dataset(own_batches))
        for _ in range(3):
            coordinator.schedule(eager_step, args=(iterator,))
        coordinator.join()
        return values_here()

    def script_compiled(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.1))
        iterator = iter(coordinator.create_per_worker_dataset(own_batches))
        for _ in range(3):
            coordinator.schedule(compiled_step, kwargs={"iterator": iterator})
        coordinator.join()
        return values_here()

    assert_close(run_roles(script), run_roles(script_compiled))


def test_a_metric_over_three_workers_counts_each_row_once(run_roles: RoleThreads) -> None:
    num_steps = 30

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        iterator = begin_counting(strategy, coordinator)
        counts: list[Any] = []
        for _ in range(2):
            own.mean.reset_state()
            values = [coordinator.schedule(counting_step, args=(iterator,)) for _ in range(num_steps)]
            coordinator.join()
            assert coordinator.done()
            assert len(coordinator.fetch({"losses": values, "other": 1})["losses"]) == num_steps
            counts.append([float(own.mean.count.value), int(own.number.value[0])])
        return counts

    rows = num_steps * BATCH_SIZE
    assert run_roles(script, num_workers=3, num_servers=2) == [[rows, rows], [rows, 2 * rows]]


def test_a_metric_is_reset_where_nobody_has_joined_since_the_last_time(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> list[float]:
        coordinator = ClusterCoordinator(strategy)
        iterator = begin_counting(strategy, coordinator)
        for num_steps in (3, 2):
            own.mean.reset_state()
            coordinator.fetch([coordinator.schedule(counting_step, args=(iterator,)) for _ in range(num_steps)])
        coordinator.join()
        return [float(own.mean.count.value), int(own.number.value[0])]

    assert run_roles(script) == [2 * BATCH_SIZE, 5 * BATCH_SIZE]


def test_an_iterator_an_epoch_over_endless_data_keeps_no_more_than_the_last(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        own.closed = []
        with strategy.scope():
            make_weight()
        dataset = coordinator.create_per_worker_dataset(endless_passes)
        found: list[int] = []
        for _ in range(5):
            iterator = iter(dataset)
            values = [coordinator.schedule(next_of, args=(iterator,)) for _ in range(2)]
            found += coordinator.fetch(values)
        # Both are dropped here at once, and wait for their turns.
        values = [coordinator.schedule(next_of, args=(iter(dataset),)) for _ in range(2)]
        return found + coordinator.fetch(values), coordinator.schedule(closed_passes).fetch()

    found, closed = run_roles(script)
    assert found == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6]
    assert {1, 2} <= set(closed) <= {1, 2, 3, 4, 5}, "the first pass is the data set itself"


def test_an_iterator_that_a_closure_waits_with_is_not_dropped(run_roles: RoleThreads) -> None:
    may_end.clear()

    def script(strategy: ParameterServerStrategy) -> list[int]:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_weight()
        dataset = coordinator.create_per_worker_dataset([1, 2])
        value = coordinator.schedule(wait_with, args=(iter(dataset),))
        kept = iter(dataset)
        found = [dataset.first_iterator]
        may_end.set()
        value.fetch()
        coordinator.schedule(wait_with, args=(kept,)).fetch()  # nobody has the first closure any more
        return [*found, dataset.first_iterator]

    assert run_roles(script) == [0, 1]


may_end = threading.Event()


def wait_with(iterator: Any) -> int:
    assert may_end.wait(TIMEOUT_S)
    return next(iterator)


def endless_passes() -> Any:
    own.num_passes = number = getattr(own, "num_passes", -1) + 1
    try:
        while True:
            yield number
    finally:
        own.closed.append(number)


def next_of(iterator: Any) -> int:
    return next(iterator)


def closed_passes() -> list[int]:
    return own.closed


def begin_counting(strategy: ParameterServerStrategy, coordinator: ClusterCoordinator) -> Any:
    """Makes what `counting_step` counts in, and returns the iterator that it is given."""
    with strategy.scope():
        make_number("int32")
        make_weight()
        own.mean = keras.metrics.Mean()
    return iter(coordinator.create_per_worker_dataset(own_batches))


def make_weight() -> None:
    own.weight = keras.Variable(np.ones(2), dtype="float32")
    own.optimizer = keras.optimizers.SGD(1.0)
    own.optimizer.build([own.weight])


@lockstep.function
def counting_step(iterator: Any) -> Any:
    inputs, targets = next(iterator)
    own.mean.update_state(targets)
    own.number.assign_add(len(inputs))
    own.optimizer.apply([inputs[0, :2]], [own.weight])
    return inputs.sum()


def add_to(amount: int) -> Any:
    own.number.assign_add(amount)
    return own.number.value


def read_number() -> Any:
    return own.number.value


def make_number(dtype: str = "float32") -> None:
    own.number = keras.Variable(np.zeros(3), dtype=dtype, trainable=False, name="number")


def test_what_is_assigned_in_the_coordinator_reaches_the_next_closure(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_number()
        found = [coordinator.schedule(add_to, args=(2,)).fetch()]
        own.number.assign_add(np.ones(3))  # without a join: what the closure added is in it
        found.append(coordinator.schedule(read_number).fetch())
        own.number.assign(np.full(3, 7))
        coordinator.join()
        found.append(own.number.numpy())
        coordinator.schedule(add_to, args=(1,))
        coordinator.join()
        return [one.tolist() for one in found], own.number.numpy().tolist()

    found, last = run_roles(script, num_workers=2)
    assert found == [[2] * 3, [1] * 3, [7] * 3]
    assert last == [8] * 3


def test_a_closure_sees_what_those_before_it_have_done_in_other_workers(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_number("int32")
        total = 0
        for amount in range(1, 21):
            total += amount
            assert coordinator.schedule(add_to, args=(amount,)).get().tolist() == [total] * 3
        for _ in range(20):
            assert coordinator.schedule(read_number).fetch().tolist() == [total] * 3
        return total

    assert run_roles(script, num_workers=3) == 210


is_waiting, may_push = threading.Event(), threading.Event()


def push_late() -> None:
    is_waiting.set()
    assert may_push.wait(TIMEOUT_S)
    push_ones()


def test_staleness_is_how_many_pushes_came_between(run_roles: RoleThreads) -> None:
    is_waiting.clear()
    may_push.clear()

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_weight()
        assert coordinator.staleness() is None
        coordinator.schedule(push_late)
        assert is_waiting.wait(TIMEOUT_S)
        for _ in range(3):
            coordinator.schedule(push_ones).fetch()
        may_push.set()
        coordinator.join()
        return coordinator.staleness(), coordinator.staleness()

    assert run_roles(script, num_workers=2) == ((3 + 0 + 0 + 0) / 4, None)


def test_a_learning_rate_that_was_set_holds_from_the_next_closure_on(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_weight()
        found: list[Any] = []
        for rate in (1.0, 0.0, 0.5):
            own.optimizer.learning_rate = rate
            coordinator.schedule(push_ones)
            coordinator.join()
            found.append(own.weight.numpy().tolist())
        return found

    assert run_roles(script) == [[0, 0], [0, 0], [-0.5, -0.5]]


def push_ones() -> None:
    own.optimizer.apply([np.ones(2, np.float32)], [own.weight])


def test_with_several_devices_a_batch_is_divided_and_gradients_are_summed(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        own.strategy = strategy
        with strategy.scope():
            make_weight()

        def make_data() -> Any:
            return strategy.experimental_distribute_dataset([np.arange(8, dtype=np.float32).reshape(4, 2)])

        iterator = iter(coordinator.create_per_worker_dataset(make_data))
        value = coordinator.schedule(divided_step, args=(iterator,)).fetch()
        coordinator.join()
        assert own.weight.value.sharding.device_set == set(strategy.devices), "where it was made"
        return [one.tolist() for one in value], own.weight.numpy().tolist()

    values, weight = run_roles(script, num_devices=2)
    assert values == [[2, 4], [10, 12]]
    assert weight == [1 - 12, 1 - 16]


@lockstep.function
def divided_step(iterator: Any) -> Any:
    def of_replica(rows: Any) -> Any:
        total = rows.sum(0)
        own.optimizer.apply([total], [own.weight])
        return total

    return own.strategy.run(of_replica, args=(next(iterator),))


def give(gradient: Any) -> None:
    own.optimizer.apply([gradient], [own.weight])


@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=pytest.mark.heavy)])
def test_closures_push_in_bfloat16_and_what_it_cannot_hold_adds_up(run_roles: RoleThreads, num_devices: int) -> None:
    gradients = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            own.weight = keras.Variable(np.zeros(50, np.float32), name="weight")
            own.optimizer = keras.optimizers.SGD(1.0)
            own.optimizer.build([own.weight])
        for gradient in gradients:
            coordinator.schedule(give, args=(gradient,))
        coordinator.join()
        return np.array(own.weight.value)

    found = run_roles(
        script,
        num_servers=2,
        num_devices=num_devices,
        variable_partitioner=FixedShardsPartitioner(2),
        compression="bfloat16",
    )
    rest, expected = np.zeros(50, np.float32), np.zeros(50, np.float32)
    for gradient in gradients:
        sent = (gradient + rest).astype(ml_dtypes.bfloat16).astype(np.float32)
        rest = gradient + rest - sent
        expected -= sent
    assert np.abs(rest).max() > 0
    np.testing.assert_array_equal(found, expected)
