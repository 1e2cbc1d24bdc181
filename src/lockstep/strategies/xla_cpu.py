"""Four changes that make XLA's programs faster on CPUs. None of them changes results.

- The gradient of max pooling. XLA runs ``select_and_scatter_add`` as a scalar loop on CPUs. `lowering_pooling_gradient`
  lowers it to whole-array operations instead: it finds the first maximum of each window with a loop over the window's
  offsets, and adds each offset's part of the gradient with one interior-padded addition.
- The gradient of a wide layer's weights. It is a product over the batch, of the layer's inputs and the gradients of its
  outputs. JAX writes it with the outputs' gradients on the left, and transposes the result. XLA merges both into one
  product with the inputs on the left, whose columns it packs. If there are many columns, and especially if they are a
  power of two apart, this takes up to ten times as long as the rest. `lowering_narrow_products` keeps such products as
  JAX writes them.
- The same gradient of several devices. The devices' products are added up before the transpose, so XLA cannot merge the
  two, and the optimizer reads the sum along its columns: for a layer of 2,400 x 2,400 weights, that takes longer than
  all products of the step. `lowering_transposed_products` exchanges the operands of such products, which JAX does not
  transpose then.
- Convolutions. XLA sends products, sums and convolutions to a library by default, which is slower for convolutions.
  `add_flags` takes them off that list, so that they run near the machine's peak. With it, jaxlib 0.10 needs an eighth
  less CPU time for a step of a CNN; for 0.12, it makes no difference. Products and sums stay on the list: without the
  library, sums over a batch take 10 to 30 times as long. The option is set only if jaxlib knows it, because an unknown
  one ends the process.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.upstream.jax_lowerings import Rules, add_barrier, lower_function, swap_product
from lockstep.upstream.jax_processes import knows_xla_option

FLAGS_VARIABLE: Final = "XLA_FLAGS"
CONVOLUTION_FLAG: Final = "--xla_cpu_experimental_ynn_fusion_type"
CONVOLUTION_TYPE: Final = "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"

NARROW_COLUMNS: Final = 32
"""The maximum number of columns on the left of a narrow product over the batch.

If the number of columns on the right is a multiple of `ALIASED_COLUMNS`, the maximum is eight times as large, because
the values of such columns share the sets of the CPU's cache.
"""

ALIASED_COLUMNS: Final = 256


def add_flags() -> None:
    """Adds the option for convolutions to ``XLA_FLAGS``. It must be called before JAX looks for its devices.

    If the variable has the option already, its value stays. All other options stay too. If jaxlib does not know the
    option, nothing is added.
    """
    flags = os.environ.get(FLAGS_VARIABLE, "")
    if CONVOLUTION_FLAG in flags or not knows_xla_option(CONVOLUTION_FLAG, CONVOLUTION_TYPE):
        return
    os.environ[FLAGS_VARIABLE] = f"{flags} {CONVOLUTION_FLAG}=-{CONVOLUTION_TYPE}".strip()


def lowering_pooling_gradient(rules: Rules) -> Rules:
    """Returns the lowering rule of max pooling's gradient on CPUs. Rules for other platforms stay."""
    del rules
    return {"cpu": lower_function(select_and_scatter_add)}


def lowering_narrow_products(rules: Rules) -> Rules:
    """Returns the lowering rule of products on CPUs. It keeps XLA from changing narrow products (`is_narrow`)."""
    rule = rules.get("cpu")
    if rule is None:  # JAX has no rule for CPUs to wrap
        return {}

    def lower(context: Any, left: Any, right: Any, **options: Any) -> Any:
        results = rule(context, left, right, **options)
        return (
            add_barrier(results)
            if is_narrow(*context.avals_in, dimension_numbers=options["dimension_numbers"])
            else results
        )

    return {"cpu": lower}


def lowering_transposed_products(rules: Rules) -> Rules:
    """Returns the lowering rule of transposes on CPUs. It exchanges the operands of products over the batch."""
    rule = rules.get("cpu") or rules.get(None)
    if rule is None:  # JAX has no rule to wrap
        return {}

    def lower(context: Any, operand: Any, *, permutation: Sequence[int]) -> Any:
        swapped = swap_product(operand, permutation)
        return rule(context, operand, permutation=permutation) if swapped is None else [swapped]

    return {"cpu": lower}


def is_narrow(left: Any, right: Any, *, dimension_numbers: Any) -> bool:
    """Whether a product over the batch is faster with few columns on its left than with many.

    Measured on products of float32 with XLA of jaxlib 0.10 and 0.12, with one and two threads; see
    ``benchmarks/README.md``.

    Args:
        left: the left operand, with a shape and a dtype.
        right: the right operand.
        dimension_numbers: the dimension numbers of ``lax.dot_general``.
    """
    (left_dims, right_dims), (batch_dims, _) = dimension_numbers
    over = len(left_dims)
    if batch_dims or tuple(left_dims) != tuple(range(over)) or tuple(right_dims) != tuple(range(over)):
        return False
    if left.dtype != jnp.float32 or right.dtype != jnp.float32:
        return False
    num_rows = math.prod(left.shape[:over])
    num_left, num_right = math.prod(left.shape[over:]), math.prod(right.shape[over:])
    if num_right < ALIASED_COLUMNS:
        return False
    if num_right % ALIASED_COLUMNS == 0:
        return num_rows >= 16 and num_left <= 8 * NARROW_COLUMNS and 2 * num_left <= num_right
    return num_rows >= 64 and num_left <= NARROW_COLUMNS and 4 * num_left <= num_right


def select_and_scatter_add(
    source: jax.Array,
    operand: jax.Array,
    *,
    select_prim: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> jax.Array:
    """Adds each window's value of ``source`` at the position of the window's first selected element.

    Args:
        source: one value for each window, in the shape of the windows' grid.
        operand: the array that the windows slide over.
        select_prim: ``lax.ge_p`` to select the maximum of a window, ``lax.le_p`` to select the minimum.
        window_dimensions: the extent of the window in each dimension.
        window_strides: the stride of the windows in each dimension.
        padding: the (low, high) padding of ``operand`` in each dimension. Padding is never selected before a real
            element.

    Returns:
        An array of the shape and dtype of ``operand``.
    """
    picks_maximum = select_prim is lax.ge_p
    identity = _extreme(operand.dtype, largest=not picks_maximum)
    padded = lax.pad(operand, identity, [(low, high, 0) for low, high in padding])
    views = {
        offset: _window_view(padded, offset, source.shape, window_strides)
        for offset in itertools.product(*(range(extent) for extent in window_dimensions))
    }
    reduce = lax.max if picks_maximum else lax.min
    best = None
    for view in views.values():
        best = view if best is None else reduce(best, view)
    assert best is not None, "a window has at least one element"
    taken = jnp.zeros(source.shape, bool)
    total = jnp.zeros(padded.shape, source.dtype)
    zero = jnp.zeros((), source.dtype)
    for offset, view in views.items():
        # If a window has a NaN, `best` is NaN, and the window's first NaN is the selected element.
        selected = ((view == best) | (view != view)) & ~taken
        taken = taken | selected
        share = lax.select(selected, source, jnp.zeros_like(source))
        spread = [
            (start, extent - start - ((count - 1) * stride + 1), stride - 1)
            for start, extent, count, stride in zip(offset, padded.shape, source.shape, window_strides, strict=True)
        ]
        total = total + lax.pad(share, zero, spread)
    starts = [low for low, _ in padding]
    return lax.slice(total, starts, [low + extent for low, extent in zip(starts, operand.shape, strict=True)])


def _window_view(padded: jax.Array, offset: Sequence[int], counts: Sequence[int], strides: Sequence[int]) -> jax.Array:
    """Returns the element at one offset of every window."""
    limits = [start + (count - 1) * step + 1 for start, count, step in zip(offset, counts, strides, strict=True)]
    return lax.slice(padded, offset, limits, strides)


def _extreme(dtype: Any, *, largest: bool) -> jax.Array:
    """Returns the dtype's smallest (or largest) value, infinite if the dtype has infinities."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.array(jnp.inf if largest else -jnp.inf, dtype)
    if dtype == jnp.bool_:
        return jnp.array(largest, dtype)
    return jnp.array(jnp.iinfo(dtype).max if largest else jnp.iinfo(dtype).min, dtype)
