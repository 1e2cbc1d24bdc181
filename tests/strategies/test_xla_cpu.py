import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lockstep.strategies import xla_cpu
from lockstep.upstream.jax_processes import knows_xla_option
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage


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
    replace(Stage.BACKEND)

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
    xla_cpu.add_flags()
    xla_cpu.add_flags()
    value = f"{xla_cpu.CONVOLUTION_FLAG}=-{xla_cpu.CONVOLUTION_TYPE}"
    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/nowhere {value}"
    own = f"{xla_cpu.CONVOLUTION_FLAG}=SOMETHING_ELSE"
    monkeypatch.setenv("XLA_FLAGS", own)
    xla_cpu.add_flags()
    assert os.environ["XLA_FLAGS"] == own


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--xla_cpu_experimental_ynn_fusion", xla_cpu.CONVOLUTION_TYPE),  # the beginning of the real one
        (xla_cpu.CONVOLUTION_FLAG, "LIBRARY_FUSION_TYPE_OF_ANOTHER_YEAR"),
    ],
)
def test_an_option_that_jaxlib_does_not_know_is_not_set(monkeypatch, flag, value):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    monkeypatch.setattr(xla_cpu, "CONVOLUTION_FLAG", flag)
    monkeypatch.setattr(xla_cpu, "CONVOLUTION_TYPE", value)
    xla_cpu.add_flags()
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=/nowhere"


def test_the_option_that_is_set_does_not_end_a_process():
    option = f"{xla_cpu.CONVOLUTION_FLAG}=-{xla_cpu.CONVOLUTION_TYPE}"
    assert knows_xla_option(xla_cpu.CONVOLUTION_FLAG, xla_cpu.CONVOLUTION_TYPE)
    program = "import jax; assert jax.jit(lambda x: x + 1)(1) == 2"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "XLA_FLAGS": option}, check=True, timeout=60)


@pytest.mark.parametrize(
    ("shape", "width", "is_kept"),
    [
        pytest.param((256, 1024), 64, True, id="aliased"),
        pytest.param((16, 4096), 10, True, id="few-rows"),
        pytest.param((256, 1000), 32, True, id="wide"),
        pytest.param((4, 64, 1024), 64, True, id="of-sequences"),
        pytest.param((256, 784), 128, False, id="not-narrow"),
        pytest.param((32, 3136), 32, False, id="too-few-rows"),
        pytest.param((256, 1024), 1024, False, id="square"),
        pytest.param((256, 64), 10, False, id="small"),
    ],
)
def test_a_narrow_layers_gradient_is_the_product_that_jax_writes(
    shape: tuple[int, ...], width: int, is_kept: bool
) -> None:
    replace(Stage.BACKEND)
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=shape).astype(np.float32)
    weights = generator.normal(size=(shape[-1], width)).astype(np.float32)
    outputs = generator.normal(size=(*shape[:-1], width)).astype(np.float32)

    def gradient(inputs, weights, outputs):
        return jax.vjp(lambda own: inputs @ own, weights)[1](outputs)[0]

    compiled = jax.jit(gradient).lower(inputs, weights, outputs).compile()
    flat = inputs.reshape(-1, shape[-1]).astype(np.float64), outputs.reshape(-1, width).astype(np.float64)
    np.testing.assert_allclose(compiled(inputs, weights, outputs), flat[0].T @ flat[1], rtol=1e-4, atol=1e-4)
    written, swapped = f"f32[{width},{shape[-1]}]", f"f32[{shape[-1]},{width}]"
    products = [line.split("=")[1].split("{")[0].strip() for line in compiled.as_text().splitlines() if " dot(" in line]
    assert products == [written if is_kept else swapped]


def test_other_products_are_left_alone() -> None:
    def is_narrow(left, right, left_dims, right_dims, batch=((), ())):
        return xla_cpu.is_narrow(left, right, dimension_numbers=((left_dims, right_dims), batch))

    narrow, wide = jax.ShapeDtypeStruct((256, 8), np.float32), jax.ShapeDtypeStruct((256, 1024), np.float32)
    assert is_narrow(narrow, wide, (0,), (0,))
    assert not is_narrow(wide, narrow, (0,), (0,)), "the narrow one is on the right already"
    assert not is_narrow(narrow, jax.ShapeDtypeStruct((1024, 8), np.float32), (1,), (1,)), "a layer's forward step"
    assert not is_narrow(narrow, wide, (), (), ((0,), (0,)))
    assert not is_narrow(jax.ShapeDtypeStruct((256, 8), np.float64), wide, (0,), (0,))


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 3, 5, 4)])
def test_a_weight_gradient_is_a_product_that_nothing_transposes(shape):
    replace(Stage.BACKEND)
    rng = np.random.default_rng(0)
    inputs, weights = rng.normal(size=shape), rng.normal(size=(shape[-1], 6))
    gradient = jax.jit(jax.grad(lambda weights, inputs: jnp.sum(jnp.tanh(inputs @ weights))))
    arrays = jnp.asarray(weights, jnp.float32), jnp.asarray(inputs, jnp.float32)
    program = gradient.lower(*arrays).as_text()
    assert "stablehlo.transpose" not in program
    assert "-> tensor<4x6xf32>" in program
    rows = inputs.reshape(-1, shape[-1])
    np.testing.assert_allclose(gradient(*arrays), rows.T @ (1 - np.tanh(rows @ weights) ** 2), rtol=1e-4, atol=1e-5)


def test_each_operand_of_an_exchanged_product_keeps_its_precision():
    replace(Stage.BACKEND)

    def gradient(inputs, gradients):
        over_rows = (((0,), (0,)), ((), ()))
        return lax.dot_general(gradients, inputs, over_rows, precision=("highest", "default")).T

    program = jax.jit(gradient).lower(jnp.ones((5, 4)), jnp.ones((5, 6))).as_text()
    (kept,) = [line for line in program.splitlines() if "-> tensor<4x6xf32>" in line and "dot_general" in line]
    assert "precision = [DEFAULT, HIGHEST]" in kept


@pytest.mark.parametrize(
    ("products", "shapes"),
    [
        pytest.param("ij,jk->ki", ((3, 4), (4, 5)), id="over-the-last-dim"),
        pytest.param("bij,bik->bkj", ((2, 3, 4), (2, 3, 5)), id="of-a-batch"),
        pytest.param("ijk,il->klj", ((2, 3, 4), (2, 5)), id="in-another-order"),
    ],
)
def test_other_transposes_stay(products, shapes):
    replace(Stage.BACKEND)
    given, _, order = products.partition("->")
    left, right = given.split(",")
    over = [left.index(name) for name in left if name in right and name not in order]
    batch = [left.index(name) for name in left if name in right and name in order]
    numbers = (over, [right.index(left[dim]) for dim in over]), (batch, [right.index(left[dim]) for dim in batch])
    made = list(dict.fromkeys([left[dim] for dim in batch] + [name for name in left + right if name in order]))

    def transposed(one, two):
        return lax.transpose(lax.dot_general(one, two, numbers), [made.index(name) for name in order])

    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    compiled = jax.jit(transposed)
    assert "stablehlo.transpose" in compiled.lower(*arrays).as_text()
    np.testing.assert_allclose(compiled(*arrays), np.einsum(products, *arrays), rtol=1e-4, atol=1e-5)
