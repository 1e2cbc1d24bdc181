"""Rows' first values are distributed as Keras's initializers draw whole tables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lockstep.errors import InvalidInputError
from lockstep.strategies.table_rows import row_values


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.Zeros(),
        keras.initializers.Constant(0.3),
        keras.initializers.RandomUniform(-0.2, 0.6),
        keras.initializers.RandomNormal(0.1, 0.4),
        keras.initializers.TruncatedNormal(0.1, 0.4),
        keras.initializers.GlorotUniform(),
        keras.initializers.HeNormal(),
        keras.initializers.LecunNormal(),
        keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
    ],
    ids=lambda initializer: type(initializer).__name__,
)
def test_rows_are_distributed_as_kerass_initializer_draws(initializer: Any) -> None:
    shape = (4000, 50)
    expected = np.asarray(initializer(shape), np.float64)
    values = row_values(keras.initializers.serialize(initializer), shape=shape, seed=1)
    found = values.of(np.arange(4000, dtype=np.int64), num_columns=50, dtype=np.dtype(np.float32)).astype(np.float64)
    spread = expected.std()
    assert abs(found.mean() - expected.mean()) < 0.02 * spread + 1e-12
    assert abs(found.std() - spread) < 0.02 * spread + 1e-12
    low, high = np.quantile(expected, [0.01, 0.99])
    np.testing.assert_allclose(np.quantile(found, [0.01, 0.99]), [low, high], atol=0.06 * spread + 1e-12)
    columns = found - found.mean()
    assert abs((columns[:, 0] * columns[:, 1]).mean()) < 0.06 * spread**2 + 1e-12, "columns know nothing of each other"


def test_what_cannot_be_drawn_row_by_row_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="received 'Orthogonal'"):
        row_values(keras.initializers.serialize(keras.initializers.Orthogonal()), shape=(3, 3), seed=0)
