"""Rewrites operations of TensorFlow whose replacement depends on their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import libcst as cst

from lockstep.migration.scripts import argument

Filling = tuple[str, Mapping[str, cst.BaseExpression]]
"""A template, and the expressions for its placeholders."""


class NotPossible(Exception):
    """A call that a person has to rewrite; the message says how."""


def _split(call: cst.Call) -> Filling:
    value, parts = argument(call, "value", position=0), argument(call, "num_or_size_splits", position=1)
    axis = argument(call, "axis", position=2) or cst.Integer("0")
    if value is None or not isinstance(parts, cst.Integer):
        raise NotPossible("pass a number of parts to keras.ops.split, or split indices: np.cumsum(sizes)[:-1]")
    return "keras.ops.split({value}, {parts}, axis={axis})", {"value": value, "parts": parts, "axis": axis}


def _band_part(call: cst.Call) -> Filling:
    value = argument(call, "input", position=0)
    code = cst.Module([])
    band = [
        None if one is None else code.code_for_node(one)
        for one in (argument(call, "num_lower", position=1), argument(call, "num_upper", position=2))
    ]
    name = {("-1", "0"): "tril", ("0", "-1"): "triu"}.get((band[0] or "", band[1] or ""))
    if value is None or name is None:
        raise NotPossible("combine keras.ops.tril and keras.ops.triu")
    return f"keras.ops.{name}({{value}})", {"value": value}


def _matmul(call: cst.Call) -> Filling:
    given: dict[str, cst.BaseExpression] = {}
    places: list[str] = []
    for position, name in enumerate("ab"):
        value = argument(call, name, position=position)
        is_transposed = argument(call, f"transpose_{name}", position=position + 2)
        if value is None or (is_transposed is not None and _truth(is_transposed) is None):
            raise NotPossible("to transpose b, use keras.ops.matmul(a, keras.ops.swapaxes(b, -1, -2))")
        given[name] = value
        places.append(f"keras.ops.swapaxes({{{name}}}, -1, -2)" if _truth(is_transposed) else f"{{{name}}}")
    if {arg.keyword.value for arg in call.args if arg.keyword} - {"a", "b", "transpose_a", "transpose_b", "name"}:
        raise NotPossible("keras.ops.matmul accepts only two arrays")
    return f"keras.ops.matmul({', '.join(places)})", given


def _truth(node: Any) -> bool | None:
    is_literal = isinstance(node, cst.Name) and node.value in ("True", "False")
    return node.value == "True" if is_literal else None


OPERATIONS: Final[Mapping[str, Callable[[cst.Call], Filling]]] = {
    "tf.split": _split,
    "tf.linalg.band_part": _band_part,
    "tf.matmul": _matmul,
    "tf.linalg.matmul": _matmul,
}
"""The function that rewrites a call, by TensorFlow's name; it raises `NotPossible` if a person has to rewrite it."""
