"""Finds the classes and functions that a saved model needs besides Keras's own, without running any code."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

CONFIG: Final = "config.json"
MAX_CONFIG_BYTES: Final = 64 * 2**20

_KERAS: Final = frozenset({"keras", "keras_hub", "keras_cv", "keras_nlp"})
"""Packages from which Keras itself imports classes."""
_BUILTINS: Final = "builtins"
_FUNCTION: Final = "function"
_COMPILATION: Final = "compile_config"
_TEXT: Final = "string"
_OF_TENSORFLOW: Final = frozenset({"StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing"})
"""Keras's layers that compute with TensorFlow, whatever the backend: JAX has no strings."""


@final
@dataclass(frozen=True, kw_only=True)
class NeededCode:
    """The classes and functions that a model needs besides Keras's own.

    Attributes:
        names: the names under which the classes and functions are registered, such as ``my_job>Scaled``.
        modules: the modules in which the classes are defined. The file does not have them for functions, or for classes
            of the program that was started.
    """

    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def needed_code(path: Path) -> NeededCode:
    """Returns the code that a ``.keras`` file's model needs; nothing if it is not such a file, which Keras reports.

    Losses and metrics that the model was compiled with are not needed for predictions.

    Args:
        path: the path of the file.
    """
    names: set[str] = set()
    modules: set[str] = set()
    for node in _nodes(path):
        name, module = _own(node)
        names |= set() if name is None else {name}
        modules |= set() if module is None else {module}
    return NeededCode(names=tuple(sorted(names)), modules=tuple(sorted(modules)))


def text_layers(path: Path) -> tuple[str, ...]:
    """Returns what a ``.keras`` file's model has that only TensorFlow computes: its layers for text, and text inputs.

    Args:
        path: the path of the file.

    Returns:
        For example ``("StringLookup", "the input words")``; empty if there is nothing, or if it is not such a file.
    """
    found: set[str] = set()
    for node in _nodes(path):
        kind, config = node.get("class_name"), node.get("config")
        if str(node.get("module")).split(".")[0] not in _KERAS or not isinstance(config, dict):
            continue
        if kind in _OF_TENSORFLOW:
            found.add(str(kind))
        elif kind == "InputLayer" and cast("dict[str, Any]", config).get("dtype") == _TEXT:
            found.add(f"the input {cast('dict[str, Any]', config).get('name')}")
    return tuple(sorted(found))


def _nodes(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file's configuration, without how it was compiled; none of another kind of file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(CONFIG) as file:
            document = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, KeyError, ValueError, RecursionError, NotImplementedError, zipfile.BadZipFile):
        return
    waiting: list[Any] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            found = cast("dict[str, Any]", node)
            yield found
            waiting.extend(value for key, value in found.items() if key != _COMPILATION)
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))


def _own(node: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns the name and module of a configuration node's class or function; None where it is Keras's or unknown."""
    if node.get("class_name") == _FUNCTION:
        name = node.get("config")
        return (name if isinstance(name, str) and ">" in name else None), None
    name, module = node.get("registered_name"), node.get("module")
    if not isinstance(name, str) or "class_name" not in node or node["class_name"] == _FUNCTION:
        return None, None
    if not isinstance(module, str):  # null for a class of the program that was started
        return name, None
    if module == _BUILTINS or module.split(".")[0] in _KERAS:
        return None, None
    return name, module
