"""What the servers are told of a model's variables."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import RoleThreads

from lockstep.parameter_server import ClusterCoordinator, ParameterServerStrategy
from lockstep.parameter_server.model_setup import describe_model
from lockstep.parameter_server.protocol import Mode

own = threading.local()
"""What a script would keep in its module: here each role has its own."""


def count() -> None:
    own.counter.assign_add(1)
    own.total.assign_add(0.5)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype .*int64:UserWarning")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype .*float64:UserWarning")
def test_a_variable_of_64_bits_is_kept_as_jax_has_it(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> list[Any]:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            own.counter = keras.Variable(2, dtype="int64", trainable=False, name="counter")
            own.total = keras.Variable(0.0, dtype="float64", trainable=False, name="total")
        for _ in range(3):
            coordinator.schedule(count)
        coordinator.join()
        own.counter.assign(own.counter.value + 10)
        coordinator.schedule(count)
        coordinator.join()
        return [own.counter.value.item(), own.total.value.item()]

    assert run_roles(script) == [16, 2.0]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_metrics_without_names_are_told_apart() -> None:
    metrics = [keras.metrics.BinaryAccuracy(name="accuracy") for _ in range(3)]
    kernel = keras.Variable(np.ones(1, np.float32), name="kernel")
    optimizer = keras.optimizers.SGD()
    optimizer.build([kernel])
    found = describe_model(
        [kernel, *[variable for metric in metrics for variable in metric.variables]],
        optimizers=[optimizer],
        num_servers=1,
        partitioner=None,
        mode=Mode.ASYNCHRONOUS,
    )
    assert [variable.path for variable in found.setup.placement.variables] == [
        "kernel",
        *[f"accuracy{number}/{name}" for number in ("", "_1", "_2") for name in ("total", "count")],
    ]
