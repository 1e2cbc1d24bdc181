"""Computes depthwise convolutions on CPUs as sums of shifted products.

In a depthwise convolution, each output channel is computed from one input channel, as in MobileNet, EfficientNet and
ConvNeXt. XLA has no kernel for it on CPUs (jaxlib 0.10 to 0.12). It runs a scalar loop, or one for each channel, which
takes ten times as long as this. For each offset of the kernel's window, `lower_depthwise` multiplies the input, shifted
by the offset, with the kernel's value at the offset, and adds the products. XLA compiles this to one loop over all
channels, which uses the processor's vector instructions. Gradients are computed in the same way.

The results are those of the convolution, up to the order in which products are added.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.upstream.jax_lowerings import Rule, lower_function

MAX_OFFSETS: Final = 49
"""The maximum number of values in the kernel's window, for one channel. Each of them is an operation in the program."""

_SUMMED_IN_32_BITS: Final = ("float16", "bfloat16")


def lower_depthwise(rule: Rule) -> Rule:
    """Returns a lowering rule for CPUs. It handles depthwise convolutions, and leaves all others to `rule`.

    Args:
        rule: the rule of ``lax.conv_general_dilated_p`` that it replaces.
    """

    def lower(context: Any, inputs: Any, kernel: Any, **options: Any) -> Any:
        avals: Sequence[Any] = (*context.avals_in, *context.avals_out)
        is_fixed = all(isinstance(size, int) and size > 0 for aval in avals for size in aval.shape)
        if is_fixed and all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals):
            shapes = [aval.shape for aval in context.avals_in]
            for is_kind, compute in ((is_depthwise, convolve), (is_kernel_gradient, kernel_gradient)):
                if is_kind(*shapes, **options):

                    def run(inputs: jax.Array, kernel: jax.Array, compute: Any = compute) -> jax.Array:
                        return compute(inputs, kernel, dtype=context.avals_out[0].dtype, **options)

                    return lower_function(run)(context, inputs, kernel)
        return rule(context, inputs, kernel, **options)

    return lower


def is_depthwise(
    inputs: Sequence[int],
    kernel: Sequence[int],
    *,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> bool:
    """Whether a convolution of arrays of these shapes has one input channel and one output channel for each group."""
    numbers = dimension_numbers
    channels = inputs[numbers.lhs_spec[1]]
    return (
        feature_group_count == channels == kernel[numbers.rhs_spec[0]]
        and feature_group_count > 1
        and batch_group_count == 1
        and math.prod(kernel[dim] for dim in numbers.rhs_spec[2:]) <= MAX_OFFSETS
    )


def is_kernel_gradient(
    inputs: Sequence[int],
    kernel: Sequence[int],
    *,
    dimension_numbers: Any,
    batch_group_count: int,
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    window_strides: Sequence[int],
    **_: Any,
) -> bool:
    """Whether a convolution of arrays of these shapes is the gradient of a depthwise convolution's kernel.

    JAX writes the gradient as a convolution whose groups are along the batch. Its input has the channels as its batch,
    and the rows as its channels. Its kernel is the gradient of the outputs.
    """
    numbers = dimension_numbers
    if not 1 < batch_group_count == inputs[numbers.lhs_spec[0]] == kernel[numbers.rhs_spec[0]]:
        return False
    sizes = [
        _num_windows(inputs[dim], kernel[of], low=low, high=high, dilation=dilation, spread=spread, stride=stride)
        for dim, of, (low, high), dilation, spread, stride in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            padding,
            lhs_dilation,
            rhs_dilation,
            window_strides,
            strict=True,
        )
    ]
    return math.prod(sizes) <= MAX_OFFSETS


def convolve(
    inputs: jax.Array,
    kernel: jax.Array,
    *,
    dtype: Any,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    **_: Any,
) -> jax.Array:
    """Returns a depthwise convolution.

    Args:
        inputs: the inputs; floats.
        kernel: the kernel, with one input channel.
        dtype: the dtype of the result. Products of 16-bit floats are added in 32 bits.
        window_strides: the parameter of ``lax.conv_general_dilated``, as the following ones are.
        padding: see there.
        lhs_dilation: see there.
        rhs_dilation: see there.
        dimension_numbers: see there.
    """
    numbers = dimension_numbers
    dims, channel = numbers.lhs_spec[2:], numbers.lhs_spec[1]
    inputs, kernel = _padded(_wide(inputs), dims, padding, lhs_dilation), _wide(kernel)
    by_offset = kernel.transpose(*numbers.rhs_spec[2:], *numbers.rhs_spec[:2])[..., 0]
    window = by_offset.shape[:-1]
    counts = [
        (inputs.shape[dim] - (size - 1) * dilation - 1) // stride + 1
        for dim, size, dilation, stride in zip(dims, window, rhs_dilation, window_strides, strict=True)
    ]
    total = None
    for offset in itertools.product(*map(range, window)):
        starts = [at * dilation for at, dilation in zip(offset, rhs_dilation, strict=True)]
        view = _view(inputs, dims, starts, counts, window_strides)
        product = view * lax.broadcast_in_dim(by_offset[offset], view.shape, (channel,))
        total = product if total is None else total + product
    assert total is not None, "a window has at least one offset"
    order = dict(zip(numbers.out_spec, numbers.lhs_spec, strict=True))
    return total.transpose([order[dim] for dim in range(total.ndim)]).astype(dtype)


def kernel_gradient(
    inputs: jax.Array,
    kernel: jax.Array,
    *,
    dtype: Any,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    **_: Any,
) -> jax.Array:
    """Returns the gradient of a depthwise convolution's kernel; see `is_kernel_gradient` and `convolve`.

    Each value is the sum of the products of the inputs, shifted by one offset, and the gradients of the outputs.
    """
    numbers = dimension_numbers
    dims = numbers.lhs_spec[2:]
    inputs = _padded(_wide(inputs), dims, padding, lhs_dilation)
    # The gradients get the order of the inputs' dimensions: channels, rows, height and width.
    order = dict(zip(numbers.lhs_spec, numbers.rhs_spec, strict=True))
    gradients = _wide(kernel).transpose([order[dim] for dim in range(inputs.ndim)])
    counts = [gradients.shape[dim] for dim in dims]
    window = [
        (inputs.shape[dim] - (count - 1) * dilation - 1) // stride + 1
        for dim, count, dilation, stride in zip(dims, counts, rhs_dilation, window_strides, strict=True)
    ]
    summed = (numbers.lhs_spec[1], *dims)
    values = []
    for offset in itertools.product(*map(range, window)):
        starts = [at * stride for at, stride in zip(offset, window_strides, strict=True)]
        values.append((_view(inputs, dims, starts, counts, rhs_dilation) * gradients).sum(summed))
    found = jnp.stack(values).reshape(*window, 1, inputs.shape[numbers.lhs_spec[0]])
    # From (*window, 1, channels) to the order of the result, in which the channels are its feature dimension.
    own = dict(zip((*numbers.out_spec[2:], *numbers.out_spec[:2]), range(found.ndim), strict=True))
    return found.transpose([own[dim] for dim in range(found.ndim)]).astype(dtype)


def _num_windows(size: int, taken: int, *, low: int, high: int, dilation: int, spread: int, stride: int) -> int:
    whole = (size - 1) * dilation + 1 + low + high
    return (whole - (taken - 1) * spread - 1) // stride + 1


def _wide(array: jax.Array) -> jax.Array:
    return array.astype(jnp.float32) if array.dtype.name in _SUMMED_IN_32_BITS else array


def _padded(
    array: jax.Array, dims: Sequence[int], padding: Sequence[tuple[int, int]], dilation: Sequence[int]
) -> jax.Array:
    widths = dict(zip(dims, zip(padding, dilation, strict=True), strict=True))
    config = [
        (*widths[dim][0], widths[dim][1] - 1) if dim in widths else (0, 0, 0)  # before, after and between
        for dim in range(array.ndim)
    ]
    return lax.pad(array, jnp.zeros((), array.dtype), config)


def _view(
    array: jax.Array, dims: Sequence[int], starts: Sequence[int], counts: Sequence[int], strides: Sequence[int]
) -> jax.Array:
    """Returns the elements of some dimensions at regular distances; all elements of the others."""
    begin, end, step = [0] * array.ndim, list(array.shape), [1] * array.ndim
    for dim, start, count, stride in zip(dims, starts, counts, strides, strict=True):
        begin[dim], end[dim], step[dim] = start, start + (count - 1) * stride + 1, stride
    return lax.slice(array, begin, end, step)
