"""What the servers are told of a model's variables."""

from __future__ import annotations

import threading
from typing import Any

import keras
import pytest
from tests.parameter_server.role_threads import RoleThreads

from lockstep.parameter_server import ClusterCoordinator, ParameterServerStrategy

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
