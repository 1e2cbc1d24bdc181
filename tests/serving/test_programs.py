"""Programs are compiled for the batch sizes that pay."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest

from lockstep.serving import programs as programs_module
from lockstep.serving.instances import InputSpec
from lockstep.serving.programs import LONG_RUN_S, Programs, batch_sizes


def programs(*, run_s: float = 0.0, row_s: float = 0.0) -> Programs:
    """Doubles rows, in a time that is fixed for a run, and for a row."""

    def slowly(rows: np.ndarray) -> np.ndarray:
        time.sleep(run_s + row_s * len(rows))
        return np.asarray(rows) * 2

    def double(arrays: list[jax.Array]) -> list[jax.Array]:
        [rows] = arrays
        return [jax.pure_callback(slowly, jax.ShapeDtypeStruct(rows.shape, rows.dtype), rows)]

    specs = (InputSpec(name="x", shape=(2,), dtype="float32"),)
    return Programs(double, inputs=specs, output_names=("y",), sizes=batch_sizes(8))


@pytest.mark.parametrize(
    ("found", "largest"),
    [
        (programs(), 8),
        (programs(run_s=2 * LONG_RUN_S), 8),
        (programs(row_s=10 * LONG_RUN_S), 1),
    ],
    ids=["short runs", "a row takes less time in a larger batch", "each row takes the same time"],
)
def test_larger_batches_are_used_if_they_pay(found: Programs, largest: int) -> None:
    assert found.max_batch_size == 8
    found.warm_up()
    assert found.max_batch_size == largest
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(found.predict({"x": rows})["y"], rows * 2)


def test_programs_for_shapes_that_vary_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "MAX_VARYING_PROGRAMS", 2)
    traced: list[int] = []

    def double(arrays: list[jax.Array]) -> list[jax.Array]:
        traced.append(arrays[0].shape[1])
        return [arrays[0] * 2]

    specs = (InputSpec(name="x", shape=(None,), dtype="float32"),)
    found = Programs(double, inputs=specs, output_names=("y",), sizes=batch_sizes(8))
    found.warm_up()
    assert not traced, "no shape is known before a request has it"
    jax.clear_caches()
    for length in (3, 4, 3, 5, 3, 4):  # 5 puts out 4, which was used least recently
        rows = np.ones((1, length), np.float32)
        np.testing.assert_array_equal(found.predict({"x": rows})["y"], rows * 2)
        jax.clear_caches()
    assert traced == [3, 4, 5, 4]
