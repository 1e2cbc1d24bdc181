"""Rewrites imports: removes TensorFlow's if unused, and adds those of rewritten code, Lockstep's before Keras's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import ScopeProvider

from lockstep.migration.names import imported_target
from lockstep.migration.scripts import IMPORTS, AbstractPass, Options, canonical

_ORDER: Final = ("glob", "os", "epath", "lockstep", "jax", "keras", "np")


@final
class ImportPass(AbstractPass):
    """Rewrites imports of TensorFlow and Keras, and adds those that are missing."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._bound: set[str] = set()
        self._place: cst.CSTNode | None = None

    def visit_Module(self, node: cst.Module) -> None:
        """Finds the imports at the top level of the script, and the place for new ones."""
        for statement in node.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for one in statement.body:
                if isinstance(one, cst.Import | cst.ImportFrom):
                    self._note(statement, one)

    def _note(self, statement: cst.SimpleStatementLine, node: cst.Import | cst.ImportFrom) -> None:
        module = _module_of(node)
        is_ours = any(canonical(name) is not None for name in module)
        if self._place is None and is_ours:
            self._place = statement
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            name = alias.evaluated_alias or alias.evaluated_name.split(".")[0]
            code = (
                cst.Module([])
                .code_for_node(node.with_changes(names=[alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)]))
                .strip()
            )
            if name in IMPORTS and code == IMPORTS[name].partition("  #")[0]:
                self._bound.add(name)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> Any:
        """Rewrites imports such as `import tensorflow.keras.layers as L`, and removes unused ones of TensorFlow."""
        kept = [alias for alias in original_node.names if not self._is_left_out(original_node, alias)]
        others: list[str] = []
        final_names: list[cst.ImportAlias] = []
        for alias in kept:
            name = canonical(alias.evaluated_name)
            target = None if name is None or alias.asname is None else imported_target(name)
            if target is None:
                final_names.append(alias)
            else:
                others.append(_from(target, alias.evaluated_alias))
        return _statements(updated_node, final_names, others)

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        """Rewrites imports such as `from tensorflow.keras import layers`, and removes unused ones of TensorFlow."""
        if isinstance(original_node.names, cst.ImportStar) or original_node.relative or original_node.module is None:
            if isinstance(original_node.names, cst.ImportStar) and canonical(_module_of(original_node)[0]) is not None:
                self.remark(
                    "the imported names are unknown: import them by name, then run lockstep migrate again",
                    link="docs/migrating.md#the-table-of-symbols",
                )
            return updated_node
        module = get_full_name_for_node(original_node.module) or ""
        if canonical(module) is None:
            return updated_node
        kept: list[cst.ImportAlias] = []
        others: list[str] = []
        for alias in original_node.names:
            name = canonical(f"{module}.{alias.evaluated_name}")
            target = None if name is None else imported_target(name)
            if target == f"{module}.{alias.evaluated_name}" and not self._is_left_out(original_node, alias):
                kept.append(alias)
            elif target is not None:
                others.append(_from(target, alias.evaluated_alias or alias.evaluated_name))
            elif not self._is_left_out(original_node, alias):
                kept.append(alias)
        return _statements(updated_node, kept, _together(others))

    def _is_left_out(self, node: Any, alias: cst.ImportAlias) -> bool:
        """Whether to remove an import of TensorFlow, because nothing in the script refers to it any more."""
        module = "" if isinstance(node, cst.Import) else f"{get_full_name_for_node(node.module)}."
        if not (module + alias.evaluated_name).startswith("tensorflow"):
            return False
        scope = self.get_metadata(ScopeProvider, node, None)
        name = alias.evaluated_alias or alias.evaluated_name.split(".")[0]
        found: Any = [] if scope is None else scope[name]
        return not any(one.references for one in found)

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        """Inserts the missing imports before the first import of TensorFlow or Keras."""
        rest = _one_a_line(updated_node) if isinstance(original_node.body[0], cst.Import | cst.ImportFrom) else []
        if original_node is not self._place:
            return cst.FlattenSentinel(rest) if len(rest) > 1 else updated_node
        lines = self._missing()
        self._place = None
        if not lines:
            return cst.FlattenSentinel(rest) if len(rest) > 1 else updated_node
        first, *others = [_line(code) for code in lines]
        first = first.with_changes(leading_lines=original_node.leading_lines)
        return cst.FlattenSentinel([first, *others, *[one.with_changes(leading_lines=[]) for one in rest]])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Inserts the missing imports at the beginning, if the script has no import of TensorFlow or Keras."""
        lines = self._missing() if self._place is None and not self._has_place(original_node) else []
        if not lines:
            return updated_node
        start = next((n for n, one in enumerate(updated_node.body) if not _is_preamble(one)), len(updated_node.body))
        body = [*updated_node.body[:start], *[_line(code) for code in lines], *updated_node.body[start:]]
        return updated_node.with_changes(body=body)

    def _has_place(self, module: cst.Module) -> bool:
        return any(
            canonical(name) is not None
            for statement in module.body
            if isinstance(statement, cst.SimpleStatementLine)
            for one in statement.body
            if isinstance(one, cst.Import | cst.ImportFrom)
            for name in _module_of(one)
        )

    def _missing(self) -> list[str]:
        needed = set(self.options.needed)
        return [IMPORTS[name] for name in _ORDER if name in needed and name not in self._bound]


def _module_of(node: cst.Import | cst.ImportFrom) -> list[str]:
    if isinstance(node, cst.Import):
        return [alias.evaluated_name for alias in node.names]
    return [get_full_name_for_node(node.module) or ""] if node.module is not None else [""]


def _from(target: str, alias: str | None) -> str:
    module, _, name = target.rpartition(".")
    asname = f" as {alias}" if alias not in (None, name) else ""
    return f"from {module} import {name}{asname}" if module else f"import {name}{asname}"


def _together(lines: Sequence[str]) -> list[str]:
    """Joins imports from the same module into one statement."""
    found: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        module, separator, name = line.partition(" import ")
        found.setdefault(module if separator else line, []).extend([name] if separator else [])
    return [f"{module} import {', '.join(names)}" if names else module for module, names in found.items()]


def _statements(updated: Any, kept: Sequence[cst.ImportAlias], others: Sequence[str]) -> Any:
    """Returns the statements that replace an import within its line."""
    new: list[Any] = []
    if kept:
        *before, last = kept
        changes = {} if isinstance(updated, cst.Import) else {"lpar": updated.lpar, "rpar": updated.rpar}
        new.append(updated.with_changes(names=[*before, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)], **changes))
    if list(kept) == list(updated.names) and not others:
        return updated
    new.extend(cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine).body[0] for line in others)
    if not new:
        return cst.RemoveFromParent()
    return cst.FlattenSentinel(new) if len(new) > 1 else new[0]


def without_duplicates(module: cst.Module) -> cst.Module:
    """Returns a script without duplicates of the imports that rewritten code needs."""
    lines = {line.partition("  #")[0] for line in IMPORTS.values()}
    seen: set[str] = set()
    body: list[Any] = []
    for statement in module.body:
        code = module.code_for_node(statement.with_changes(leading_lines=[])).partition("#")[0].strip()
        if code in lines and code in seen:
            continue
        seen.add(code)
        body.append(statement)
    return module.with_changes(body=body)


def _one_a_line(line: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
    """Puts each statement of a line on a line of its own."""
    separate = [one.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for one in line.body]
    return [
        line.with_changes(body=[one], leading_lines=line.leading_lines if number == 0 else [])
        for number, one in enumerate(separate)
    ]


def _line(code: str) -> cst.SimpleStatementLine:
    return cst.ensure_type(cst.parse_statement(code), cst.SimpleStatementLine)


def _is_preamble(node: Any) -> bool:
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    one = node.body[0]
    is_text = isinstance(one, cst.Expr) and isinstance(one.value, cst.SimpleString | cst.ConcatenatedString)
    return is_text or (
        isinstance(one, cst.ImportFrom) and get_full_name_for_node(one.module or cst.Name("")) == "__future__"
    )
