"""Which classes and functions a saved model needs beside Keras's own, read from its file without running anything."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

CONFIG: Final = "config.json"
MAX_CONFIG_BYTES: Final = 64 * 2**20

_KERAS: Final = frozenset({"keras", "keras_hub", "keras_cv", "keras_nlp"})
"""Packages that Keras itself imports from."""
_BUILTINS: Final = "builtins"
_FUNCTION: Final = "function"
_COMPILATION: Final = "compile_config"


@final
@dataclass(frozen=True, kw_only=True)
class NeededCode:
    """What a model needs beside Keras's own.

    Attributes:
        names: what its classes and functions are registered under, such as ``my_job>Scaled``.
        modules: modules that they were made in, as far as the file says: it does not of functions, nor of a class of
            the program that was started.
    """

    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def needed_code(path: Path) -> NeededCode:
    """Reads from a ``.keras`` file what its model needs; nothing where it is no such file, which Keras will say.

    What a model is compiled with (losses, metrics) is not needed for a prediction.

    Args:
        path: the file.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(CONFIG) as file:
            document = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, KeyError, ValueError, RecursionError, NotImplementedError, zipfile.BadZipFile):
        return NeededCode()
    names: dict[str, None] = {}
    modules: dict[str, None] = {}
    waiting: list[Any] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            found = cast("dict[str, Any]", node)
            name, module = _own(found)
            names.update({} if name is None else {name: None})
            modules.update({} if module is None else {module: None})
            waiting.extend(value for key, value in found.items() if key != _COMPILATION)
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))
    return NeededCode(names=tuple(sorted(names)), modules=tuple(sorted(modules)))


def _own(node: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns the name and the module of what a node of the configuration stands for, where it is none of Keras's."""
    if node.get("class_name") == _FUNCTION:
        name = node.get("config")
        return (name if isinstance(name, str) and ">" in name else None), None
    name, module = node.get("registered_name"), node.get("module")
    if not isinstance(name, str) or "class_name" not in node or node["class_name"] == _FUNCTION:
        return None, None
    if not isinstance(module, str):  # Keras writes null for a class of the program that was started
        return name, None
    if module == _BUILTINS or module.split(".")[0] in _KERAS:
        return None, None
    return name, module
