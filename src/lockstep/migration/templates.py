"""Fills the arguments of a call into the placeholders of an expression's template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import libcst as cst

from lockstep.migration.scripts import Options, without_last_comma

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


def fill(template: str, given: Mapping[str, cst.BaseExpression], options: Options) -> cst.BaseExpression | None:
    """Returns a template's expression with arguments for its placeholders; None if a required argument is missing."""
    expression = options.expression(_PLACEHOLDER.sub(lambda found: f"__{found[1]}__", template))
    filler = _Filler(given)
    filled = expression.visit(filler)
    return None if filler.is_missing else filled


class _Filler(cst.CSTTransformer):
    def __init__(self, given: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self._given = given
        self.is_missing = False

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> Any:
        name = _slot(original_node.value)
        if name is not None and name not in self._given:
            return cst.RemoveFromParent()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if len(updated_node.args) == len(original_node.args):
            return updated_node
        return updated_node.with_changes(args=without_last_comma(list(updated_node.args)))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = _slot(original_node)
        if name is None:
            return updated_node
        if name not in self._given:
            return updated_node  # `leave_Arg` removes its argument
        return self._given[name]

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        if _slot(original_node.value) is None:
            return updated_node
        self.is_missing |= _slot(updated_node.value) is not None
        is_simple = isinstance(updated_node.value, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
        if is_simple or updated_node.value.lpar:
            return updated_node
        return updated_node.with_changes(
            value=updated_node.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        )


def _slot(node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.Name) and node.value.startswith("__") and node.value.endswith("__"):
        return node.value[2:-2]
    return None
