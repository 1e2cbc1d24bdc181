import ctypes
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lockstep.strategies import xla_cpu


def by_hand(source, operand, *, window, strides, padding, largest):
    """The definition: each window's value goes to its first selected element."""
    fill = -np.inf if largest else np.inf
    padded = np.pad(operand, padding, constant_values=fill)
    total = np.zeros_like(padded)
    for place in np.ndindex(*source.shape):
        corner = [index * step for index, step in zip(place, strides, strict=True)]
        block = tuple(slice(start, start + extent) for start, extent in zip(corner, window, strict=True))
        values = padded[block]
        first = np.unravel_index(values.argmax() if largest else values.argmin(), values.shape)
        total[tuple(start + offset for start, offset in zip(corner, first, strict=True))] += source[place]
    inner = tuple(slice(low, low + extent) for (low, _), extent in zip(padding, operand.shape, strict=True))
    return total[inner]


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4),
        ((1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (0, 1), (0, 0))),
        ((1, 3, 2, 1), (1, 1, 3, 1), ((0, 0), (1, 0), (0, 0), (0, 0))),
    ],
)
def test_the_pooling_gradient_is_what_its_definition_says(window, strides, padding, largest):
    generator = np.random.default_rng(0)
    operand = generator.integers(0, 4, (2, 9, 8, 3)).astype(np.float32)  # many ties: the first one counts
    padded = [extent + low + high for extent, (low, high) in zip(operand.shape, padding, strict=True)]
    counts = [(extent - size) // step + 1 for extent, size, step in zip(padded, window, strides, strict=True)]
    source = generator.normal(size=counts).astype(np.float32)
    found = xla_cpu.select_and_scatter_add(
        jnp.asarray(source),
        jnp.asarray(operand),
        select_prim=lax.ge_p if largest else lax.le_p,
        window_dimensions=window,
        window_strides=strides,
        padding=padding,
    )
    expected = by_hand(source, operand, window=window, strides=strides, padding=padding, largest=largest)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_registered_lowering_is_the_one_that_runs():
    xla_cpu.register_pooling_gradient()

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()

    operand = jnp.array([[1.0, 5.0, 2.0, 2.0], [0.0, 5.0, 2.0, 1.0]])
    program = jax.jit(jax.grad(pooled)).lower(operand).as_text()
    assert "select_and_scatter" not in program
    np.testing.assert_array_equal(jax.grad(pooled)(operand), [[0, 1, 1, 0], [0, 0, 0, 0]])


def test_a_window_with_a_nan_gives_its_gradient_to_it():
    operand = jnp.array([1.0, jnp.nan, 3.0, 0.0])
    arguments = {"window_dimensions": (2,), "window_strides": (2,), "padding": ((0, 0),)}
    found = xla_cpu.select_and_scatter_add(jnp.array([1.0, 2.0]), operand, select_prim=lax.ge_p, **arguments)
    np.testing.assert_array_equal(found, [0, 1, 2, 0])


def test_flags_are_added_to_and_never_replaced(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    monkeypatch.setattr(xla_cpu, "version", lambda name: "0.10.2")
    xla_cpu.add_flags()
    xla_cpu.add_flags()
    value = f"{xla_cpu.CONVOLUTION_FLAG}={xla_cpu.CONVOLUTION_VALUE}"
    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/nowhere {value}"
    own = f"{xla_cpu.CONVOLUTION_FLAG}=SOMETHING_ELSE"
    monkeypatch.setenv("XLA_FLAGS", own)
    xla_cpu.add_flags()
    assert os.environ["XLA_FLAGS"] == own


def test_flags_are_left_alone_for_a_jaxlib_that_was_not_tried(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    monkeypatch.setattr(xla_cpu, "version", lambda name: "0.9.1")
    xla_cpu.add_flags()
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=/nowhere"


def test_memory_is_kept_unless_a_person_set_up_the_c_library(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not xla_cpu.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    assert xla_cpu.keep_freed_memory() == hasattr(ctypes.CDLL(None), "mallopt")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not xla_cpu.keep_freed_memory()
