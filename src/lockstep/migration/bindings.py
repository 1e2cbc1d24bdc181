"""Finds the order in which code reads and binds names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import libcst as cst


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """The reading or binding of a name.

    Attributes:
        name: the name.
        binds: whether the name is bound, rather than read.
        is_certain: whether this happens in every run of the code, rather than only in some branch or iteration.
    """

    name: str
    binds: bool
    is_certain: bool = True


def events(node: Any, *, is_certain: bool = True) -> Iterator[Event]:
    """Yields the names that code reads and binds, in execution order; of nested functions, only the names they read."""
    match node:
        case cst.Name(value=name):
            yield Event(name=name, binds=False, is_certain=is_certain)
        case cst.Attribute(value=value):
            yield from events(value, is_certain=is_certain)
        case cst.Arg(value=value) | cst.NamedExpr(value=value):
            yield from events(value, is_certain=is_certain)
            if isinstance(node, cst.NamedExpr):
                yield from _bound(node.target, is_certain=is_certain)
        case cst.Assign(targets=targets, value=value):
            yield from events(value, is_certain=is_certain)
            for target in targets:
                yield from _bound(target.target, is_certain=is_certain)
        case cst.AnnAssign(target=target, value=value):
            if value is not None:
                yield from events(value, is_certain=is_certain)
                yield from _bound(target, is_certain=is_certain)
        case cst.AugAssign(target=target, value=value):
            yield from events(target, is_certain=is_certain)
            yield from events(value, is_certain=is_certain)
            yield from _bound(target, is_certain=is_certain)
        case cst.With(items=items, body=body):
            for item in items:
                yield from events(item.item, is_certain=is_certain)
                if item.asname is not None:
                    yield from _bound(item.asname.name, is_certain=is_certain)
            yield from events(body, is_certain=is_certain)
        case cst.For(iter=source, target=target, body=body, orelse=orelse):
            yield from events(source, is_certain=is_certain)
            yield from _bound(target, is_certain=is_certain)  # if the iterable is not empty
            yield from events(body, is_certain=False)
            yield from events(orelse, is_certain=False)
        case cst.While(test=test, body=body, orelse=orelse) | cst.If(test=test, body=body, orelse=orelse):
            yield from events(test, is_certain=is_certain)
            yield from events(body, is_certain=False)
            yield from events(orelse, is_certain=False)
        case cst.FunctionDef(name=name):
            yield from _free(node)
            yield Event(name=name.value, binds=True, is_certain=is_certain)
        case cst.ClassDef(name=name):
            yield from _free(node)
            yield Event(name=name.value, binds=True, is_certain=is_certain)
        case cst.Lambda():
            yield from _free(node)
        case cst.ListComp() | cst.SetComp() | cst.DictComp() | cst.GeneratorExp():
            yield from _free(node)
        case cst.Import(names=names) | cst.ImportFrom(names=[*names]):
            for alias in names:
                name = alias.evaluated_alias or alias.evaluated_name.split(".")[0]
                yield Event(name=name, binds=True, is_certain=is_certain)
        case cst.Try() | cst.TryStar() | cst.Match():
            for child in node.children:
                yield from events(child, is_certain=False)
        case cst.CSTNode():
            for child in node.children:
                yield from events(child, is_certain=is_certain)
        case _:
            return


def _bound(target: Any, *, is_certain: bool) -> Iterator[Event]:
    match target:
        case cst.Name(value=name):
            yield Event(name=name, binds=True, is_certain=is_certain)
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            for element in elements:
                yield from _bound(element.value, is_certain=is_certain)
        case cst.CSTNode():  # an attribute or an item: its owner is read
            for child in target.children:
                yield from events(child, is_certain=is_certain)
        case _:
            return


def _free(node: cst.CSTNode) -> Iterator[Event]:
    """Yields the names that a nested scope, such as a function, reads from the scopes around it."""
    for default in _defaults(node):  # read outside, so a parameter of the same name does not hide the name
        for event in events(default):
            if not event.binds:
                yield Event(name=event.name, binds=False, is_certain=False)
    found = [event for child in node.children for event in _within(child)]
    own = {event.name for event in found if event.binds}
    for event in found:
        if not event.binds and event.name not in own:
            yield Event(name=event.name, binds=False, is_certain=False)


def _defaults(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.FunctionDef | cst.Lambda):
        for parameter in _parameters(node.params):
            if parameter.default is not None:
                yield parameter.default


def _parameters(node: cst.Parameters) -> Sequence[cst.Param]:
    return (*node.params, *node.kwonly_params, *node.posonly_params)


def _within(node: Any) -> Iterator[Event]:
    match node:
        case cst.Parameters():
            for parameter in _parameters(node):
                yield Event(name=parameter.name.value, binds=True)
            for star in (node.star_arg, node.star_kwarg):
                if isinstance(star, cst.Param):
                    yield Event(name=star.name.value, binds=True)
        case cst.CompFor():
            yield from events(node.iter)
            yield from _bound(node.target, is_certain=True)
            for child in (*node.ifs, *([] if node.inner_for_in is None else [node.inner_for_in])):
                yield from _within(child)
        case cst.Name():
            return  # the name of the function or class itself
        case _:
            yield from events(node)


def names_bound(nodes: Sequence[cst.CSTNode]) -> list[str]:
    """Returns the names that code binds, each once, in order."""
    return list(dict.fromkeys(event.name for node in nodes for event in events(node) if event.binds))


def names_read_first(nodes: Sequence[cst.CSTNode]) -> set[str]:
    """Returns the names that code may read before it has certainly bound them."""
    found: set[str] = set()
    bound: set[str] = set()
    for node in nodes:
        for event in events(node):
            if event.binds and event.is_certain:
                bound.add(event.name)
            elif not event.binds and event.name not in bound:
                found.add(event.name)
    return found


def names_read(nodes: Sequence[cst.CSTNode]) -> set[str]:
    """Returns the names that code reads."""
    return {event.name for node in nodes for event in events(node) if not event.binds}
