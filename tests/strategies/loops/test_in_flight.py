"""Over several CPU devices a program begins when the one before it has ended, whatever kind of step it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lockstep
from lockstep.strategies import MirroredStrategy, PerReplica


@pytest.fixture
def strategy():
    return MirroredStrategy(["cpu:0", "cpu:1"])


def slowly(matrix):
    """Takes long enough to be under way still when the call that gave it has returned."""
    return jnp.sum(jax.lax.fori_loop(0, 40, lambda _, value: jnp.tanh(value @ value), matrix))


def square():
    return np.full((2, 600, 600), 1e-3, np.float32)


def test_a_step_that_assigns_nothing(strategy):
    step = lockstep.function(lambda batch: strategy.reduce("SUM", strategy.run(slowly, (batch,))))
    batch = PerReplica(square())
    jax.block_until_ready(step(batch))
    first, second = step(batch), step(batch)
    assert first.is_ready()
    assert float(first) == float(second)


def test_a_step_that_gives_its_state_back_as_it_was(strategy):
    state = strategy.replicate({"count": 0})
    step = strategy.compile(lambda state, batch: (state, jax.vmap(slowly)(batch).sum()), donate_state=False)
    batch = strategy.shard_batch(square())
    jax.block_until_ready(step(state, batch))
    (_, first), _ = step(state, batch), step(state, batch)
    assert first.is_ready()


def test_values_reduced_outside_a_function(strategy):
    values = strategy.run(slowly, (PerReplica(square()),))
    strategy.reduce("SUM", values)
    assert values.stacked.is_ready()


def test_steps_that_assign_nothing_come_to_an_end():
    strategy = MirroredStrategy([f"cpu:{index}" for index in range(8)])
    step = lockstep.function(lambda batch: strategy.gather(strategy.run(jnp.tanh, (batch,)), axis=0))
    batch = PerReplica(np.ones((8, 4, 256), np.float32))
    jax.block_until_ready([step(batch) for _ in range(200)])
