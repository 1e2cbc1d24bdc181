"""Writes a function of a notebook or a script as a module of its own, with everything that it uses."""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, cast, final

from lockstep.errors import InvalidInputError
from lockstep.submission.definitions import attribute_chains, class_text, function_text, global_names, has_decorators
from lockstep.submission.naming import Naming

MAIN: Final = "__main__"
MAX_LITERAL_LENGTH: Final = 10_000
"""The maximum length of a global value that is copied into the module, in characters."""
_OF_NOTEBOOKS: Final = frozenset({"display", "get_ipython"})
"""Names that IPython adds to Python's own."""
_BUILTINS: Final = frozenset(vars(builtins)) - _OF_NOTEBOOKS
_PRIVATE_PARTS: Final = frozenset({"src", "_src"})


def write_module(function: Callable[..., object], *, folder: Path | None, naming: Naming) -> str:
    """Returns the source of a module that defines a function and everything that it uses.

    Args:
        function: a function of ``__main__``, which may have decorators.
        folder: the folder that is packed with the module; None for none.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: the function uses something that cannot be written: the message names it.
    """
    inner = cast("FunctionType", inspect.unwrap(function))
    writer = _ModuleWriter(inner.__globals__, folder=folder, naming=naming)
    writer.add(function.__name__, function, user="")
    # Lockstep first, because it chooses Keras's backend.
    imports = ["import lockstep", *(line for line in writer.imports if line != "import lockstep")]
    is_future = inner.__code__.co_flags & __future__.annotations.compiler_flag
    future = ["from __future__ import annotations", ""] if is_future else []
    return "\n".join([*future, *imports, "", "", "\n\n".join(writer.parts)])


@final
class _ModuleWriter:
    """Collects what a function uses, each thing after what it uses itself.

    Attributes:
        imports: the lines that import what is installed.
        parts: the definitions and values.
    """

    def __init__(self, names: Mapping[str, Any], *, folder: Path | None, naming: Naming) -> None:
        self.imports: list[str] = []
        self.parts: list[str] = []
        self._names = names
        self._folder, self._naming = folder, naming
        self._known: set[str] = set()

    def add(self, name: str, value: object, *, user: str) -> None:
        """Adds a global name and its value.

        Args:
            name: the name.
            value: its value.
            user: the function or class that uses it; "" for the submitted function.

        Raises:
            InvalidInputError: the value cannot be written.
        """
        if name in self._known:
            return
        self._known.add(name)
        if isinstance(value, ModuleType):
            self._add_import(name, module=value.__name__, attribute="")
            return
        own_name = _name_in_main(value)
        if own_name not in (None, name) and self._names.get(own_name) is value:
            self.add(own_name, value, user=user)
            self.parts.append(f"{name} = {own_name}\n")
            return
        own = _own_definition(name, value)
        if own is not None:
            self._add_definition(name, own)
            return
        place = _importable(name, value)
        if place is not None:
            module, attribute = place
            self._add_import(name, module=module, attribute=attribute)
            return
        literal = _literal(value)
        if literal is None:
            raise InvalidInputError(
                f"{user} uses the global {name}, a value of type {type(value).__name__}, which a job cannot have",
                allowed="modules, functions, classes, numbers, texts, and lists or dicts of them",
                action=f"make it inside {user}, or pass it as an argument",
            )
        self.parts.append(f"{name} = {literal}\n")

    def _add_definition(self, name: str, text: str) -> None:
        for used in global_names(text):
            if used == name or (used.startswith("__") and used.endswith("__")):
                continue  # a module has its own __name__ and __file__
            if used in _OF_NOTEBOOKS and _name_in_main(self._names.get(used)) is None:
                raise InvalidInputError(f"{name} uses {used}, which exists only in a notebook", action="leave it out")
            if used in self._names:
                self.add(used, self._names[used], user=name)
            elif used not in _BUILTINS:
                raise InvalidInputError(
                    f"{name} uses {used}, which is not defined", action=f"define it before you submit {name}"
                )
        for chain in attribute_chains(text):
            self._add_submodules(chain)
        self.parts.append(text if text.endswith("\n") else f"{text}\n")

    def _add_import(self, name: str, *, module: str, attribute: str) -> None:
        self._check_reachable(module)
        if attribute:
            line = f"from {module} import {attribute}" + ("" if attribute == name else f" as {name}")
        else:
            line = f"import {module}" + ("" if module == name else f" as {name}")
        self.imports.append(line)

    def _add_submodules(self, chain: Sequence[str]) -> None:
        """Imports the modules within a package that a definition reaches by attributes, such as ``xml.dom``."""
        value = self._names.get(chain[0])
        if not isinstance(value, ModuleType):
            return
        module = value.__name__
        for part in chain[1:]:
            module = f"{module}.{part}"
            if module not in sys.modules:
                return
            line = f"import {module}"
            if line not in self.imports:
                self.imports.append(line)

    def _check_reachable(self, module: str) -> None:
        """Refuses a module that a job would not find.

        Raises:
            InvalidInputError: it is code of this machine that is not packed.
        """
        place = module_file(module)
        if place is None or is_installed(module, place=place):
            return
        if self._folder is not None and module_in(self._folder, module=module, place=place):
            return
        raise InvalidInputError(
            f"the module {module} is not installed, but lies in {place}",
            action=f"name its folder with {self._naming('package_path')}, and import it by its path in the folder",
        )


def module_file(module: str) -> Path | None:
    """Returns the file of an imported module; None for one without a file, such as a built-in one."""
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if file is not None:
        return Path(file).resolve()
    places = list(getattr(found, "__path__", ()))
    return Path(places[0]).resolve() / "__init__.py" if places else None


def is_installed(module: str, *, place: Path) -> bool:
    """Returns whether a module is a part of Python, of Lockstep, or of an installed package.

    Args:
        module: the module's name.
        place: its file.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "lockstep":
        return True
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
    return any(place.is_relative_to(Path(folder).resolve()) for folder in folders)


def module_in(folder: Path, *, module: str, place: Path) -> bool:
    """Returns whether a module is found under its name if a folder is packed: from the folder, or from above it."""
    parts = (module.split("."), [*module.split("."), "__init__"])
    bases = (folder.resolve(), folder.resolve().parent)
    found = any(base.joinpath(*names).with_suffix(".py") == place for base in bases for names in parts)
    return found and place.is_relative_to(folder.resolve())


def _name_in_main(value: object) -> str | None:
    """Returns the name that a function or class of ``__main__`` was defined by; None for any other value."""
    if isinstance(value, type | FunctionType) and value.__module__ == MAIN:
        return value.__name__
    return None


def _own_definition(name: str, value: object) -> str | None:
    """Returns the source of what `def` or `class` defined by a name in ``__main__``; None for any other value."""
    if isinstance(value, type):
        return class_text(value) if _name_in_main(value) == name else None
    inner = inspect.unwrap(value) if callable(value) else value
    if not isinstance(inner, FunctionType) or inner.__module__ != MAIN or inner.__name__ != name:
        return None
    check_plain(inner)
    text = function_text(inner, name=name)
    # What was made from the function in another way than by decorators cannot be made again.
    return text if inner is value or has_decorators(text) else None


def check_plain(function: FunctionType) -> None:
    """Refuses a function that needs more than its source and its globals.

    Args:
        function: the function, without its decorators.

    Raises:
        InvalidInputError: it is a lambda or a coroutine, or it is defined inside another function.
    """
    name = function.__name__
    if name == "<lambda>":
        raise InvalidInputError("a lambda cannot be submitted", action="give the function a name with `def`")
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise InvalidInputError(f"{name} is a coroutine or a generator", allowed="a plain function")
    if function.__code__.co_freevars:
        raise InvalidInputError(
            f"{name} uses variables of the function around it",
            received=", ".join(function.__code__.co_freevars),
            action="pass them as arguments",
        )
    if "<locals>" in function.__qualname__:
        raise InvalidInputError(
            f"{name} is defined inside another function", action="define it at the top level of the notebook or module"
        )


def _importable(name: str, value: object) -> tuple[str, str] | None:
    """Returns the module and the name from which a value is imported; None if it is not found in a module.

    Several modules may offer the value. One without private parts is preferred, and then the one nearest to the top.
    """
    home = getattr(value, "__module__", None) or type(value).__module__
    own_name = getattr(value, "__name__", None)
    if not isinstance(home, str) or not isinstance(own_name, str) or home == MAIN:
        return None
    top = home.partition(".")[0]
    found = [
        (any(part.startswith("_") or part in _PRIVATE_PARTS for part in module.split(".")), module.count("."), module)
        for module, loaded in list(sys.modules.items())
        if module.partition(".")[0] == top and getattr(loaded, "__dict__", {}).get(own_name) is value
    ]
    return (min(found)[2], own_name) if found else None


def _literal(value: object) -> str | None:
    """Returns a value as Python writes it; None if it is not made of numbers, texts, lists, tuples, dicts and sets."""
    try:
        text = repr(value)
        if len(text) > MAX_LITERAL_LENGTH:
            return None
        again = ast.literal_eval(text)
        return text if type(again) is type(value) and again == value else None
    except Exception:  # of any class's own __repr__ or __eq__
        return None
