import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage


@pytest.fixture(autouse=True)
def _lowering():
    replace(Stage.BACKEND)


def depthwise(x, w, *, numbers, **options):
    return lax.conv_general_dilated(x, w, dimension_numbers=numbers, feature_group_count=w.shape[-1], **options)


def by_full_kernel(x, w, *, numbers, **options):
    """The same convolution with a kernel between all channels, which is zero between different channels."""
    full = w * jnp.eye(w.shape[-1], dtype=w.dtype)
    return lax.conv_general_dilated(x, full, dimension_numbers=numbers, **options)


CASES = {
    "same": ((9, 8), (3, 3), {"window_strides": (1, 1), "padding": "SAME"}),
    "strides": ((9, 8), (3, 3), {"window_strides": (2, 3), "padding": "SAME"}),
    "padding": ((9, 8), (5, 2), {"window_strides": (1, 2), "padding": ((2, 0), (1, 3))}),
    "cropping": ((9, 8), (3, 3), {"window_strides": (1, 1), "padding": ((-1, 0), (0, -2))}),
    "dilation": ((11, 10), (3, 2), {"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (2, 3)}),
    "dilated inputs": ((5, 4), (3, 3), {"window_strides": (1, 1), "padding": ((1, 1), (2, 1)), "lhs_dilation": (2, 3)}),
    "one dimension": ((12,), (4,), {"window_strides": (2,), "padding": "SAME"}),
    "three dimensions": ((4, 5, 4), (2, 3, 2), {"window_strides": (1, 2, 1), "padding": "SAME"}),
    "a window as large as the input": ((6, 6), (6, 6), {"window_strides": (1, 1), "padding": "VALID"}),
}


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_a_full_kernel(case, channels_first):
    size, window, options = CASES[case]
    letters = "HWD"[: len(size)]
    data = f"NC{letters}" if channels_first else f"N{letters}C"
    options = {**options, "numbers": (data, f"{letters}IO", data)}
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, *size) if channels_first else (3, *size, 4)).astype(np.float32)
    w = rng.normal(size=(*window, 1, 4)).astype(np.float32)
    weights = rng.normal(size=jax.eval_shape(lambda: depthwise(x, w, **options)).shape).astype(np.float32)

    def found_by(convolve):
        return jax.jit(jax.value_and_grad(lambda x, w: (convolve(x, w, **options) * weights).sum(), argnums=(0, 1)))

    program = found_by(depthwise)
    assert "stablehlo.convolution" not in program.lower(x, w).as_text()
    assert "stablehlo.convolution" in found_by(by_full_kernel).lower(x, w).as_text()
    found, expected = program(x, w), found_by(by_full_kernel)(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, expected)
    np.testing.assert_allclose(depthwise(x, w, **options), by_full_kernel(x, w, **options), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_16_bit_floats_are_added_in_32_bits(dtype):
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((2, 9, 9, 4), (7, 7, 1, 4)))
    options = {"numbers": ("NHWC", "HWIO", "NHWC"), "window_strides": (1, 1), "padding": "SAME"}
    found = jax.jit(lambda: depthwise(x, w, **options))()
    assert found.dtype == dtype
    exact = by_full_kernel(x.astype("float32"), w.astype("float32"), **options)
    np.testing.assert_array_equal(found, exact.astype(dtype))


@pytest.mark.parametrize(
    ("kernel", "groups"),
    [((3, 3, 2, 4), 2), ((3, 3, 1, 8), 4), ((8, 8, 1, 4), 4), ((3, 3, 4, 4), 1)],
    ids=["two channels a group", "two outputs a channel", "a large window", "one group"],
)
def test_other_convolutions_stay(kernel, groups):
    def convolve(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)

    shapes = jax.ShapeDtypeStruct((2, 9, 9, 4), "float32"), jax.ShapeDtypeStruct(kernel, "float32")
    assert "stablehlo.convolution" in jax.jit(convolve).lower(*shapes).as_text()


def test_a_program_of_any_number_of_rows_keeps_the_convolution():
    [rows] = jax.export.symbolic_shape("n")
    options = {"numbers": ("NHWC", "HWIO", "NHWC"), "window_strides": (1, 1), "padding": "SAME"}
    w = np.ones((3, 3, 1, 4), np.float32)
    exported = jax.export.export(jax.jit(lambda x: depthwise(x, w, **options)))(
        jax.ShapeDtypeStruct((rows, 9, 9, 4), "float32")
    )
    x = np.random.default_rng(0).normal(size=(2, 9, 9, 4)).astype(np.float32)
    np.testing.assert_allclose(exported.call(x), depthwise(x, w, **options), rtol=1e-5, atol=1e-5)
