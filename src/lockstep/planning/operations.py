"""Counts the operations in the matrix products and convolutions of a traced function, including loop repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core
from jax.sharding import PartitionSpec


def matrix_operations(jaxpr: Any, *, loops_once: bool = False) -> int:
    """Counts multiplications and additions of matrix products and convolutions, over all devices.

    Operations whose results nothing reads are not counted, because XLA removes them.

    Args:
        jaxpr: a jaxpr, closed or not.
        loops_once: whether to count the body of a loop once, as XLA does, instead of once per repetition. The body of a
            ``while`` loop is always counted once, because its number of repetitions is not known in advance.
    """
    total = 0
    for equation in _needed_equations(getattr(jaxpr, "jaxpr", jaxpr)):
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot(equation)
        elif name == "conv_general_dilated":
            total += _convolution(equation)
        else:
            inner = [matrix_operations(part, loops_once=loops_once) for part in _inner(equation.params)]
            if name == "cond":
                total += max(inner, default=0)
            elif name == "scan" and not loops_once:
                total += equation.params["length"] * sum(inner)
            elif name == "shard_map":
                total += _num_shares(equation.params) * sum(inner)
            else:
                total += sum(inner)
    return total


def _needed_equations(jaxpr: Any) -> list[Any]:
    """Returns the equations with effects, and those whose results are read or returned, from the last to the first."""
    read, needed = _variables(jaxpr.outvars), list[Any]()
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not read.isdisjoint(equation.outvars):
            needed.append(equation)
            read |= _variables(equation.invars)
    return needed


def _variables(atoms: list[Any]) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, core.Literal)}


def _num_shares(params: dict[str, Any]) -> int:
    """Returns the number of devices over which a mapped function divides its arrays. Repeated work does not count."""
    specs = jax.tree.leaves((params["in_specs"], params["out_specs"]), is_leaf=_is_spec)
    axes = {axis for spec in specs for dim in spec for axis in (dim if isinstance(dim, tuple) else (dim,))}
    return math.prod(params["mesh"].shape[axis] for axis in axes if axis is not None)


def _is_spec(part: Any) -> bool:
    return isinstance(part, PartitionSpec)


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (core.Jaxpr, core.ClosedJaxpr)):
                yield part


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[dim] for dim in contracted)


def _convolution(equation: Any) -> int:
    numbers: jax.lax.ConvDimensionNumbers = equation.params["dimension_numbers"]
    kernel = equation.invars[1].aval.shape
    # Each output element takes the kernel's size divided by its output channels. Padding is counted too.
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
