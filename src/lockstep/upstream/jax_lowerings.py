"""Reads and replaces JAX's rules that lower primitives to StableHLO."""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
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


def register_lowering(primitive: Any, rule: Rule, *, platform: str | None = None) -> None:
    """Replaces a primitive's rule on a platform, or on all platforms without a rule of their own."""
    mlir.register_lowering(primitive, cast("Any", rule), platform=platform)


def lower_function(function: Callable[..., Any], *, multiple_results: bool = False) -> Rule:
    """Returns a rule that lowers to the computation of a function of arrays."""
    return cast("Any", mlir.lower_fun(function, multiple_results=multiple_results))


def add_barrier(results: Any) -> list[Any]:
    """Returns the values behind an optimization barrier, across which XLA does not move operations."""
    return list(cast("Any", stablehlo.OptimizationBarrierOp(results).results))
