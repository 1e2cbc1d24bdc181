"""Finds the functions of a script that run on the host, because a data set maps its elements with them."""

from __future__ import annotations

from typing import Any, Final

import libcst as cst

from lockstep.migration.scripts import last_name

_MAPPING: Final = frozenset(
    {"map", "filter", "flat_map", "interleave", "from_generator", "numpy_function", "py_function"}
)


def host_functions(module: cst.Module) -> frozenset[int]:
    """Returns the ids of nodes of functions and lambdas that only data sets, or other such functions, call.

    Functions are identified by name: if other code, such as a step, calls a function of the same name, the function is
    not included.
    """
    functions: dict[str, list[cst.FunctionDef]] = {}
    referring: dict[str, set[int]] = {}
    handed: set[str] = set()
    found: set[int] = set()
    _gather(module, around=0, functions=functions, referring=referring, handed=handed, found=found)
    while True:
        new = {
            id(function)
            for name, same in functions.items()
            for function in same
            if id(function) not in found
            and (name in handed or referring.get(name))
            and referring.get(name, set()) <= found
        }
        if not new:
            return frozenset(found)
        found |= new


def _gather(
    node: Any,
    *,
    around: int,
    functions: dict[str, list[cst.FunctionDef]],
    referring: dict[str, set[int]],
    handed: set[str],
    found: set[int],
) -> None:
    """Collects functions by name, the functions that refer to each name, and the names passed to data sets."""
    skipped: set[int] = set()
    if isinstance(node, cst.FunctionDef):
        functions.setdefault(node.name.value, []).append(node)
        around = id(node)
        skipped.add(id(node.name))
    elif isinstance(node, cst.Lambda):
        around = id(node)
    elif isinstance(node, cst.Call) and last_name(node.func) in _MAPPING:
        for arg in node.args:
            value = arg.value
            if isinstance(value, cst.Call) and last_name(value.func) == "partial" and value.args:
                value = value.args[0].value
            if isinstance(value, cst.Lambda):
                found.add(id(value))
            elif isinstance(value, cst.Name | cst.Attribute):
                handed.add(last_name(value))
                skipped.add(id(arg.value))
    elif isinstance(node, cst.Name):
        referring.setdefault(node.value, set()).add(around)
    for child in node.children:
        if id(child) in skipped:
            continue
        if isinstance(child, cst.Arg) and id(child.value) in skipped:
            continue
        _gather(child, around=around, functions=functions, referring=referring, handed=handed, found=found)
