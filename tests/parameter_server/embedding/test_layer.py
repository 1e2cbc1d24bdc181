"""Ids come to the layer as they are, or are refused: rounded or cut short they would be others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.test_refusals import lone_strategy
from tests.parameter_server.threads import make_layout

from lockstep.errors import InvalidInputError
from lockstep.parameter_server import Embedding
from lockstep.strategies import OneDeviceStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


@contextmanager
def served_layer(num_rows: int) -> Iterator[Any]:
    """A layer whose rows are asked for, where each row is of its id."""
    layout = make_layout()
    with layout.scope():
        layer = Embedding(num_rows, 1, name="words")
        layer.build()

        def read_rows(wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
            return {path: ids[:, None] for path, ids in wanted.items()}

        layout.read_rows = read_rows
        yield layer


@pytest.mark.parametrize(
    ("dtype", "num_rows"), [("float32", 2**24), ("bfloat16", 2**8), ("float16", 2**11), ("int32", 2**31 - 1)]
)
def test_ids_of_a_dtype_that_has_them_all_are_taken(dtype: str, num_rows: int) -> None:
    with served_layer(num_rows) as layer:
        assert layer(jnp.asarray([num_rows - 1, 3], dtype)).ravel().tolist() == [num_rows - 1, 3]


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2**24), ("bfloat16", 2**8), ("float16", 2**11)])
def test_ids_that_may_have_been_rounded_are_refused(dtype: str, most: int) -> None:
    said = f"ids of embedding words come as {dtype}, which rounds those above {most}; received 'a table of {most + 1} "
    with served_layer(most + 1) as layer:
        with pytest.raises(InvalidInputError, match=said):
            layer(jnp.asarray([3], dtype))
        with pytest.raises(InvalidInputError, match=r'pass them as integers: keras.Input\(\.\.\., dtype="int32"\)'):
            layer(keras.Input((3,), dtype=dtype))


def test_ids_of_64_bits_are_not_cut_to_others() -> None:
    ids = np.array([5, 2**32 + 5])
    with served_layer(10) as layer, pytest.raises(InvalidInputError, match="fit into 32 bits; received '5 to 4294967"):
        layer(ids)
    layer = Embedding(10, 1)
    with pytest.raises(InvalidInputError, match="fit into 32 bits; received '5 to 4294967"):
        layer(ids)


def test_ids_of_floats_are_theirs_under_a_policy_of_fewer_bits() -> None:
    """Keras's inputs are floats where nothing else is said."""
    ids = np.array([[257, 258, 999], [0, 512, 1023]])

    def predict() -> Any:
        keras.backend.clear_session()
        model = keras.Sequential([keras.Input((3,)), Embedding(1024, 4, seed=1, dtype="mixed_bfloat16")])
        model.compile("sgd", "mse")
        return model.predict(ids, verbose=0)

    rows = Embedding(1024, 4, seed=1)(np.arange(1024))
    for strategy in (OneDeviceStrategy(), lone_strategy("chief")):
        with strategy.scope():
            np.testing.assert_array_equal(predict(), np.asarray(rows)[ids])
