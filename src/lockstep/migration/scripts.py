"""A script, and the base of all passes over it: resolves names, inserts remarks, and collects needed imports."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast, final

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from lockstep.migration.remarks import MARK, comment_of

TENSORFLOW: Final = "tf"
_ROOTS: Final[Mapping[str, str]] = {
    "tensorflow.compat.v2": "tf",
    "tensorflow": "tf",
    "keras": "tf.keras",
    "tf_keras": "tf.keras",
    "tensorflow_datasets": "tfds",
    "tensorflow_hub": "hub",
}
"""The prefix of a module's names in the table, by module; the package `keras` is taken for `tf.keras`."""

_ALIASES: Final[Mapping[str, str]] = {
    "tf.dtypes": "tf",
    "tf.initializers": "tf.keras.initializers",
    "tf.losses": "tf.keras.losses",
    "tf.metrics": "tf.keras.metrics",
    "tf.optimizers": "tf.keras.optimizers",
}

IMPORTS: Final[Mapping[str, str]] = {
    "lockstep": "import lockstep  # import it before Keras: it selects the JAX backend",
    "keras": "import keras",
    "jax": "import jax",
    "np": "import numpy as np",
    "epath": "from etils import epath",
    "glob": "import glob",
    "os": "import os",
}
"""The import statements for the names that rewritten code uses."""

_IDENTIFIER: Final = re.compile(r"(?<![\w.])([A-Za-z_]\w*)")


@final
@dataclass(kw_only=True)
class Options:
    """The options of a migration, and the imports that it needs.

    Attributes:
        keep_tf_data: whether to leave input pipelines of ``tf.data`` unchanged.
        needed: the names of `IMPORTS` that rewritten code has to import; the passes add to it.
    """

    keep_tf_data: bool = False
    needed: set[str] = field(default_factory=set[str])

    def expression(self, code: str) -> Any:
        """Parses an expression for the rewritten script, and adds the imports that it needs to ``needed``."""
        self.needed.update(name for name in _IDENTIFIER.findall(code) if name in IMPORTS)
        return cst.parse_expression(code)


def chain_of(node: cst.CSTNode) -> tuple[cst.Name, list[str]] | None:
    """Splits ``a.b.c`` into its first name and the rest; returns None for anything else."""
    attributes: list[str] = []
    while isinstance(node, cst.Attribute):
        attributes.append(node.attr.value)
        node = node.value
    return (node, attributes[::-1]) if isinstance(node, cst.Name) else None


def last_name(node: cst.CSTNode) -> str:
    """Returns the last name of ``a.b.c``; "" for anything else."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def string_of(node: cst.CSTNode | None) -> str | None:
    """Returns the value of a string literal; None for anything else."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value
    return None


def argument(call: cst.Call, name: str, *, position: int | None = None) -> cst.BaseExpression | None:
    """Returns the value of an argument, given by name or at a position; None if the call does not have it."""
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if (arg.keyword is None and index == position) or (arg.keyword is not None and arg.keyword.value == name):
            return arg.value
    return None


def without_last_comma(args: list[cst.Arg]) -> list[cst.Arg]:
    """Returns arguments without a comma after the last one."""
    return [*args[:-1], args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if args else args


class AbstractPass(cst.CSTTransformer, ABC):
    """A pass over a script, which can put remarks before the statements that they are about.

    Args:
        options: the options of the migration.
    """

    METADATA_DEPENDENCIES = (QualifiedNameProvider, ParentNodeProvider, ScopeProvider)

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self._comments: list[dict[str, cst.EmptyLine]] = []

    def full_name(self, node: cst.CSTNode) -> str | None:
        """Returns the table's name of TensorFlow or Keras for a name, such as ``tf.`` and more; None for other names.

        The result is also None if the script binds the name to something else as well, because it is then ambiguous.
        """
        chain = chain_of(node)
        if chain is None:
            return None
        root, attributes = chain
        imported, own = self._bindings(root)
        names = {canonical(".".join([name, *attributes])) for name in imported}
        return names.pop() if len(names) == 1 and not own else None

    def is_ambiguous(self, root: cst.Name) -> bool:
        """Whether the script binds a name both to something of TensorFlow or Keras and to something else."""
        imported, own = self._bindings(root)
        names = {canonical(name) for name in imported}
        return bool(names - {None}) and (len(names) > 1 or bool(own))

    def _bindings(self, root: cst.Name) -> tuple[set[str], set[str]]:
        """Returns the full names that a name is imported from, and the other bindings of the name."""
        found = self.get_metadata(QualifiedNameProvider, root, set())
        if callable(found):
            found = found()
        imported = {name.name for name in found if name.source is QualifiedNameSource.IMPORT}
        return imported, {name.name for name in found if name.source is not QualifiedNameSource.IMPORT}

    def parent_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the parent of a node of the original script."""
        return cast("cst.CSTNode", self.get_metadata(ParentNodeProvider, node))

    def parents_of(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the ancestors of a node of the original script, from the innermost to the module."""
        while not isinstance(node, cst.Module):
            node = self.parent_of(node)
            yield node

    def remark(self, what: str, *, link: str) -> None:
        """Adds a remark before the current statement, about something that a person has to change."""
        line = comment_of(what, link=link)
        assert line.comment is not None, "it was made with one"
        if self._comments:
            self._comments[-1].setdefault(line.comment.value, line)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Starts collecting the remarks of a statement."""
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            self._comments.append({})
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Inserts the remarks of a statement before it, each once."""
        updated = super().on_leave(original_node, updated_node)
        if not isinstance(original_node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return updated
        comments = self._comments.pop()
        if not comments:
            return updated
        if isinstance(updated, cst.FlattenSentinel):
            first, *rest = updated
            return cst.FlattenSentinel([_commented(first, comments), *rest])
        return _commented(updated, comments) if isinstance(updated, cst.CSTNode) else updated


@final
class Script:
    """A script with what LibCST knows of its names.

    Finding that out takes most of a migration, so it is found once for all passes that change nothing.

    Args:
        module: the script.
    """

    def __init__(self, module: cst.Module) -> None:
        self.code = module.code
        self._wrapper = MetadataWrapper(module)

    @property
    def module(self) -> cst.Module:
        """The script's tree."""
        return self._wrapper.module

    def passed(self, one: AbstractPass) -> Script:
        """Runs a pass; returns the script that it makes, which is this one if its code stays the same."""
        after = self._wrapper.visit(one)
        return self if after.code == self.code else Script(after)


def _commented(node: Any, comments: Mapping[str, cst.EmptyLine]) -> Any:
    there = {line.comment.value for line in node.leading_lines if line.comment and line.comment.value.startswith(MARK)}
    new = [line for text, line in comments.items() if text not in there]
    return node.with_changes(leading_lines=[*node.leading_lines, *new])


def canonical(name: str) -> str | None:
    """Returns the table's form of a name of TensorFlow or Keras; None for names of other packages."""
    for root, here in _ROOTS.items():
        if name == root or name.startswith(f"{root}."):
            return _usual(here + name[len(root) :])
    return None


def _usual(name: str) -> str:
    """Replaces an alias in TensorFlow, such as `tf.losses`, by the usual name."""
    for alias, usual in _ALIASES.items():
        if name == alias or name.startswith(f"{alias}."):
            return usual + name[len(alias) :]
    return name
