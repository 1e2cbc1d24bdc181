"""Reads and replaces JAX's rules that lower primitives to StableHLO."""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

__all__ = [
    "Primitive",
    "Rule",
    "Rules",
    "ShapedArray",
    "add_barrier",
    "lower_function",
    "lowerings_of",
    "register_lowering",
    "swap_product",
]

Rule: TypeAlias = Callable[..., Any]
"""A function of JAX's lowering context, the operands and the primitive's parameters that returns the results."""


Rules: TypeAlias = "dict[str | None, Rule]"
"""The rules of a primitive by platform. The key None is for every platform without a rule of its own."""


def lowerings_of(primitive: Any) -> Rules:
    """Returns a primitive's rules; empty if this version of JAX keeps them elsewhere."""
    tables = {None: getattr(mlir, "_lowerings", {}), **getattr(mlir, "_platform_specific_lowerings", {})}
    found = {platform: getattr(table.get(primitive), "rule", None) for platform, table in tables.items()}
    return {platform: rule for platform, rule in found.items() if rule is not None}


def register_lowering(primitive: Any, rule: Rule, *, platform: str | None = None, is_cached: bool = True) -> None:
    """Replaces a primitive's rule on a platform, or on all platforms without a rule of their own.

    Args:
        primitive: the primitive.
        rule: its new rule.
        platform: the platform's name; None for all.
        is_cached: whether JAX may lower equal uses once. The rule then sees arguments of a function as its operands.
    """
    mlir.register_lowering(primitive, cast("Any", rule), platform=platform, cacheable=is_cached)


def lower_function(function: Callable[..., Any], *, multiple_results: bool = False) -> Rule:
    """Returns a rule that lowers to the computation of a function of arrays."""
    return cast("Any", mlir.lower_fun(function, multiple_results=multiple_results))


def swap_product(transposed: Any, permutation: Sequence[int]) -> Any:
    """Returns a product over the first dims of both operands that equals the transpose of such a product.

    The operands change places, so their remaining dims do too. Nothing is left to transpose.

    Args:
        transposed: the StableHLO value that is to be transposed.
        permutation: the dims of the value in the order of the result.

    Returns:
        The value; None if ``transposed`` is not such a product, or the permutation does more than exchange the
        operands' dims.
    """
    owner = transposed.owner
    product = getattr(owner, "opview", owner)
    if not isinstance(product, stablehlo.DotGeneralOp):
        return None
    left, right = product.lhs, product.rhs
    numbers = stablehlo.DotDimensionNumbers(product.dot_dimension_numbers)
    over = list(range(len(numbers.lhs_contracting_dimensions)))
    num_left = left.type.rank - len(over)
    is_over_rows = list(numbers.lhs_contracting_dimensions) == list(numbers.rhs_contracting_dimensions) == over
    exchanged = [*range(num_left, len(permutation)), *range(num_left)]
    if numbers.lhs_batching_dimensions or not is_over_rows or list(permutation) != exchanged:
        return None
    if product.algorithm is not None:  # it may be another one for the left operand than for the right one
        return None
    precisions = product.precision_config
    kind = transposed.type
    return stablehlo.DotGeneralOp(
        ir.RankedTensorType.get([kind.shape[dim] for dim in permutation], kind.element_type),
        right,
        left,
        numbers,
        precision_config=None if precisions is None else ir.ArrayAttr.get(list(precisions)[::-1]),
    ).result


def add_barrier(results: Any) -> list[Any]:
    """Returns the values behind an optimization barrier, across which XLA does not move operations."""
    return list(cast("Any", stablehlo.OptimizationBarrierOp(results).results))
