"""Finds the source text of functions and classes that somebody wrote in a notebook or a script."""

from __future__ import annotations

import ast
import inspect
import linecache
import symtable
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from lockstep.errors import InvalidInputError


def function_text(function: FunctionType, *, name: str) -> str:
    """Returns the definition of a function, with its decorators.

    Args:
        function: the function itself, without its decorators.
        name: its name, for messages.

    Raises:
        InvalidInputError: the source is not known, or is not a ``def`` of this name.
    """
    try:
        text = textwrap.dedent(inspect.getsource(function))
        node = _only_definition(text)
    except (OSError, TypeError, SyntaxError):
        raise _unknown(f"the function {name}") from None
    if not isinstance(node, ast.FunctionDef) or node.name != function.__name__:
        raise _unknown(f"the function {name}")
    return text


def class_text(kind: type) -> str:
    """Returns the definition of a class, with its decorators.

    `inspect` does not find classes of notebooks, because the module of a notebook has no file. So the class is looked
    for in the files, or cells, of its methods; without methods, in all cells, the latest first.

    Args:
        kind: the class.

    Raises:
        InvalidInputError: the source is not known.
    """
    for name, line in _places(kind):
        lines = linecache.getlines(name)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name != kind.__name__:
                continue
            start = min(part.lineno for part in (node, *node.decorator_list))
            if line is None or start <= line <= (node.end_lineno or start):
                return textwrap.dedent("".join(lines[start - 1 : node.end_lineno]))
    raise _unknown(f"the class {kind.__name__}")


def has_decorators(text: str) -> bool:
    """Returns whether a definition has decorators."""
    node = _only_definition(text)
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and bool(node.decorator_list)


def global_names(text: str) -> list[str]:
    """Returns the global names that a definition uses, sorted.

    Args:
        text: the source of the definition, without indentation.
    """
    table = symtable.symtable(text, "<definition>", "exec")
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    assigned: set[str] = set()
    for inner in _tables_below(table):
        for symbol in inner.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                used.add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned():
                assigned.add(symbol.get_name())
    return sorted(used - assigned)


def attribute_chains(text: str) -> list[tuple[str, ...]]:
    """Returns the attributes that a definition reads of names, such as ``("xml", "dom", "minidom")``, sorted.

    Args:
        text: the source of the definition, without indentation.
    """
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(text)):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name):
            found.add((node.id, *reversed(parts)))
    return sorted(found)


def _tables_below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for inner in table.get_children():
        yield inner
        yield from _tables_below(inner)


def _only_definition(text: str) -> ast.stmt | None:
    body = ast.parse(text).body
    return body[0] if len(body) == 1 else None


def _places(kind: type) -> Iterator[tuple[str, int | None]]:
    """Yields the files, or cells, in which a class may be defined, and a line of it there if one is known."""
    codes = [code for value in vars(kind).values() if (code := _code_of(value)) is not None]
    for code in codes:
        if code.co_qualname.startswith(f"{kind.__qualname__}.") and linecache.getlines(code.co_filename):
            yield code.co_filename, code.co_firstlineno
    if not codes or all(not linecache.getlines(code.co_filename) for code in codes):
        for name in reversed(list(linecache.cache)):
            if not name.endswith(".py") or "ipykernel" in name:  # a cell, which is no file that was imported
                yield name, None


def _code_of(value: Any) -> CodeType | None:
    """Returns the code of a method, whatever kind it is; None for anything else."""
    for found in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
        inner = inspect.unwrap(found) if isinstance(found, FunctionType) else None
        if isinstance(inner, FunctionType):
            return inner.__code__
    return None


def _unknown(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"the source of {what} is not known", allowed="what a notebook's cell or a file defines by `def` or `class`"
    )
