"""Imports the modules of a version's packages that its model needs, in the prediction server's process."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import keras

from lockstep.errors import ModelError
from lockstep.serving.needed_code import NeededCode, needed_code

OWN_LAYERS: Final = "lockstep.parameter_server"
NUM_NAMED: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class PackageCode:
    """The code of a version, which the runner has put on the module path.

    Attributes:
        has_code: whether the version has packages.
        program: the module that the version's job ran; None if it is not known.
    """

    has_code: bool = False
    program: str | None = None

    def register_classes(self, file: Path) -> None:
        """Registers the classes that a model needs with Keras, by importing the packages' modules. Runs their code.

        Nothing is imported if the model uses only Keras's and Lockstep's classes.

        Args:
            file: the path of the model's file.

        Raises:
            ModelError: there is no package, or it does not have what the model needs.
        """
        needed = needed_code(file)
        import_own_layers(needed)
        if not (missing := missing_names(needed)):
            return
        if not self.has_code:
            raise ModelError(
                f"it needs {listed(missing)}, which {'is' if len(missing) == 1 else 'are'} not Keras's",
                action="deploy it with --job, so that the job's package goes along, or name one with --package-uri",
            )
        for module in needed.modules:
            _import(module)
        if self.program is not None and (missing := missing_names(needed)):
            _import_program(self.program, missing=missing)
        if missing := missing_names(needed):
            raise ModelError(
                f"its package does not register {listed(missing)}",
                action="put @keras.saving.register_keras_serializable(package=...) above it, as it was in training, in "
                "a module that the job's program imports",
            )


def import_own_layers(needed: NeededCode) -> None:
    """Imports Lockstep's own layers, which registers them with Keras, if a model needs them."""
    if any(module.startswith(f"{OWN_LAYERS}.") for module in needed.modules):
        importlib.import_module(OWN_LAYERS)


def missing_names(needed: NeededCode) -> list[str]:
    """Returns the names of the classes and functions that a model needs and that are not registered with Keras."""
    return [name for name in needed.names if keras.saving.get_registered_object(name) is None]


def listed(names: Sequence[str]) -> str:
    """Returns names in a line, without those that are too many."""
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the package's code may raise anything
        reason = (str(error) or "no reason given").splitlines()[0][:300]
        action = ""
        if isinstance(error, ModuleNotFoundError):
            action = "add it to the package, or to the package's requirements.txt"
        raise ModelError(
            f"module {module} of its package cannot be imported: {type(error).__name__}: {reason}", action=action
        ) from error


def _import_program(program: str, *, missing: Sequence[str]) -> None:
    """Imports the job's program for its classes, unless the import would start training."""
    try:
        spec = importlib.util.find_spec(program)
        if spec is not None and spec.submodule_search_locations is not None:  # ``python -m package``
            program = f"{program}.__main__"
            spec = importlib.util.find_spec(program)
    except (Exception, SystemExit):  # from a parent package; the caller reports what is missing
        return
    if spec is None or spec.origin is None:  # the program is not in the package
        return
    if not _has_guard(Path(spec.origin)):
        raise ModelError(
            f"{listed(missing)} may be defined in {program}, the job's program, which cannot be imported without "
            "starting training",
            action="put it into a module of its own that the program imports, or what the program does behind "
            "if __name__ == '__main__':",
        )
    _import(program)


def _has_guard(path: Path) -> bool:
    """Returns whether a program's file tests ``__name__`` at the top level, so that it can be imported safely."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True  # importing it will report the error
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(statement.test))
        for statement in tree.body
    )
