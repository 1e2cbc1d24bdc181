"""Updates that are set aside, in code that runs as it stands and in compiled code, and optimizers that were built."""

from __future__ import annotations

import gc
from typing import Any

import jax
import keras
import numpy as np
import pytest

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.strategies.updates import built_optimizers, deferred_updates


def make_step(strategy: Any, *, is_run: bool) -> tuple[Any, Any, Any]:
    with strategy.scope():
        weight = keras.Variable(np.zeros(2), dtype="float32")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])

    def apply(rows: Any) -> Any:
        optimizer.apply([rows.sum(0)], [weight])
        return rows.sum()

    def step(rows: Any) -> Any:
        return strategy.run(apply, args=(rows,)) if is_run else apply(rows)

    return step, optimizer, weight


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "as it stands"])
@pytest.mark.parametrize("is_run", [True, False], ids=["run", "alone"])
def test_within_deferred_updates_nothing_is_updated_at_any_call(is_run: bool, is_compiled: bool) -> None:
    strategy = MirroredStrategy(jax.devices()[:2]) if is_run else OneDeviceStrategy()
    step, optimizer, weight = make_step(strategy, is_run=is_run)
    step = lockstep.function(step) if is_compiled else step
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    (batch,) = strategy.experimental_distribute_dataset([rows]) if is_run else [rows]
    for _ in range(2):  # as it is traced, and when it was
        with deferred_updates() as noted:
            step(batch)
        (update,) = noted
        assert update.optimizer is optimizer
        assert [variable is weight for variable in update.variables] == [True]
        np.testing.assert_array_equal(update.gradients[0], [12, 16])
        assert np.asarray(weight.value).tolist() == [0, 0]
    step(batch)
    assert np.asarray(weight.value).tolist() == [-12, -16], "elsewhere the same function updates"


def test_a_second_update_by_one_optimizer_is_refused_across_compiled_functions() -> None:
    step, _, _ = make_step(OneDeviceStrategy(), is_run=False)
    compiled = lockstep.function(step)
    rows = np.ones((1, 2), np.float32)
    with deferred_updates():
        compiled(rows)
        with pytest.raises(InvalidInputError, match="is applied twice in one step"):
            compiled(rows)


def test_optimizers_are_known_from_when_they_are_built_until_they_are_gone() -> None:
    variables = [keras.Variable(np.zeros(2))]
    first, second, unbuilt = keras.optimizers.Adam(), keras.optimizers.SGD(momentum=0.9), keras.optimizers.SGD()
    OneDeviceStrategy()  # by then at the latest it is looked at
    second.build(variables)
    first.build(variables)
    first.build(variables)

    def known() -> list[Any]:
        return [one for one in built_optimizers() if one in (first, second, unbuilt)]

    assert known() == [second, first]
    num_known = len(built_optimizers())
    del second
    gc.collect()
    second = None
    assert known() == [first]
    assert len(built_optimizers()) < num_known


def test_an_optimizer_around_another_one_is_among_those_that_were_built():
    inner = keras.optimizers.SGD()
    outer = keras.optimizers.LossScaleOptimizer(inner)
    with OneDeviceStrategy().scope():
        outer.build([keras.Variable(np.zeros(2, np.float32))])
    assert {id(inner), id(outer)} <= {id(one) for one in built_optimizers()}
