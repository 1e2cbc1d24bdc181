"""Ids that a model computes are those that its step will have, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.embedding.test_exactness import describe
from tests.parameter_server.threads import make_layout

from lockstep.errors import InvalidInputError
from lockstep.parameter_server import Embedding
from lockstep.parameter_server.embedding.lookups import Wanted
from lockstep.parameter_server.embedding.steps import RowStep
from lockstep.parameter_server.fitting.step import FitStep

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

MASK = 9
TOKENS = np.arange(8, dtype=np.int32).reshape(2, 4)


class Masking(keras.layers.Layer):
    """Has some tokens be others, by numbers that it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, tokens: Any) -> Any:
        return keras.ops.where(keras.random.uniform(keras.ops.shape(tokens), seed=self.seeds) < 0.5, MASK, tokens)


class Counting(keras.layers.Layer):
    """Adds how many steps there have been."""

    def build(self, shape: Any) -> None:
        del shape
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, tokens: Any) -> Any:
        self.count.assign_add(1)
        return tokens + self.count


class Renaming(keras.layers.Layer):
    """Looks tokens up in a list of others, which no step changes; and draws numbers for what no id comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=0)

    def build(self, shape: Any) -> None:
        del shape
        initial = keras.initializers.Constant(np.arange(MASK + 1)[::-1].copy())
        self.names = self.add_weight(shape=(MASK + 1,), dtype="int32", initializer=initial, trainable=False)

    def call(self, tokens: Any) -> Any:
        self.add_loss(keras.ops.sum(self.dropout(keras.ops.ones(3), training=True)))
        return keras.ops.take(self.names, tokens)


def make_model(layer: Any) -> Any:
    layers = [layer, Embedding(MASK + 4, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model._symbolic_build(data_batch=(TOKENS, np.zeros((2, 1), np.float32), None))
    return model


def wanted_of(layer: Callable[[], Any]) -> Wanted:
    layout = make_layout()
    with layout.scope():
        model = make_model(layer())
        step = FitStep(model, describe(model, layout, num_servers=1), layout=layout)
        return step.wanted((TOKENS, np.zeros((2, 1), np.float32), None))


@pytest.mark.parametrize("layer", [Masking, Counting])
def test_ids_of_state_that_steps_change_are_refused_in_fit(layer: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"ids .* depend on random numbers, .*; draw them where the data are"):
        wanted_of(layer)


def test_ids_of_state_that_no_step_changes_are_those_of_the_step() -> None:
    wanted = wanted_of(Renaming)
    (ids,) = wanted.ids.values()
    np.testing.assert_array_equal(ids[wanted.indices[0]], MASK - TOKENS)


def test_ids_of_random_numbers_are_drawn_anew_where_steps_wait_for_each_other() -> None:
    layout = make_layout()
    with layout.scope():
        model = make_model(Masking())
        read: list[list[int]] = []

        def read_rows(wanted: Any) -> dict[str, Any]:
            ((path, ids),) = wanted.items()
            read.append(ids.tolist())
            return {path: np.zeros((len(ids), 2), np.float32)}

        step = RowStep(model, layout.embeddings, kind="predict", read_rows=read_rows)
        state = ([one.value for one in model.trainable_variables], [one.value for one in model.non_trainable_variables])
        for _ in range(2):
            _, state = step.run(state, (TOKENS,))
    assert MASK in read[0]
    assert read[0] != read[1]
