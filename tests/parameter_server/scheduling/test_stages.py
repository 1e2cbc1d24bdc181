"""A script that trains by fit, and then by closures: workers follow it from one to the other."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import BATCH_SIZE, STEPS, make_model, make_rows
from tests.parameter_server.role_threads import RoleThreads

import lockstep
from lockstep.errors import WrongStateError
from lockstep.parameter_server import ClusterCoordinator, Embedding, ParameterServerStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

own = threading.local()
"""What a script would keep in its module: here each role has its own."""
NUM_CLOSURES = 30


@lockstep.function
def step(iterator: Any) -> Any:
    inputs, targets = next(iterator)
    variables = own.model.trainable_variables
    loss, gradients = lockstep.value_and_grad(lambda: keras.ops.mean((own.model(inputs) - targets) ** 2), variables)
    own.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    own.num_rows.assign_add(len(inputs))
    return loss


def batches(context: Any) -> Any:
    inputs, targets = make_rows()
    while True:
        for start in range(0, len(inputs) - BATCH_SIZE, BATCH_SIZE):
            yield inputs[start : start + BATCH_SIZE], targets[start : start + BATCH_SIZE]


def train_by_closures(strategy: ParameterServerStrategy) -> list[Any]:
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        own.model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=2))]
        )
        own.optimizer = keras.optimizers.SGD(0.05)
        own.optimizer.build(own.model.trainable_variables)
        own.num_rows = keras.Variable(0, dtype="int32", trainable=False)
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(NUM_CLOSURES)]
    coordinator.join()
    return [np.asarray(coordinator.fetch(losses)), *own.model.get_weights(), int(own.num_rows.value)]


@pytest.mark.parametrize(
    ("num_fits", "num_workers"),
    [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ],
)
@pytest.mark.heavy
def test_closures_may_follow_fit_in_one_script(run_roles: RoleThreads, num_fits: int, num_workers: int) -> None:
    rows = make_rows()
    seen: dict[str, list[Any]] = defaultdict(list)

    def script(strategy: ParameterServerStrategy) -> list[Any]:
        with strategy.scope():
            model = make_model()
        for _ in range(num_fits):
            history = model.fit(*rows, batch_size=BATCH_SIZE, steps_per_epoch=STEPS, epochs=2, verbose=0)
            seen[threading.current_thread().name].append((history.epoch, history.history))
        seen[threading.current_thread().name].append(model.evaluate(*rows, verbose=0))
        return train_by_closures(strategy)

    found = run_roles(script, num_workers=num_workers, num_servers=2)
    coordinator = seen.pop(threading.current_thread().name)
    assert len(coordinator) == num_fits + 1
    assert len(seen) == num_workers
    for worker in seen.values():
        assert worker == coordinator  # what stands between fit and the closures runs there too
    assert found[-1] == NUM_CLOSURES * BATCH_SIZE
    if num_workers == 1:
        alone = run_roles(train_by_closures, num_servers=2)
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_array_equal(one, other)


def test_fit_does_not_follow_closures(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> str:
        with strategy.scope():
            model = make_model()
            model.optimizer.build(model.trainable_variables)
        train_by_closures(strategy)
        with pytest.raises(WrongStateError) as caught:
            model.fit(*make_rows(), steps_per_epoch=STEPS, verbose=0)
        return str(caught.value)

    assert run_roles(script).endswith("have fit come before closures in a script")


def test_rows_of_tables_that_fit_has_trained_are_not_lost(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> str:
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,), dtype="int32"), Embedding(10, 2), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(np.ones((4, 1), np.int32), np.ones((4, 1, 1), np.float32), steps_per_epoch=2, verbose=0)
        with pytest.raises(WrongStateError) as caught:
            train_by_closures(strategy)
        return str(caught.value)

    assert "rows of tables that fit has trained are on the servers" in run_roles(script)
