"""Unpacks a version's packages in the prediction server's process, and imports the modules that the model needs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import keras

from lockstep.errors import ModelError
from lockstep.jobs.running.packages import unpack_package
from lockstep.serving.needed_code import NeededCode, needed_code
from lockstep.storage import read_url

OWN_LAYERS: Final = "lockstep.parameter_server"
CODE_FOLDER: Final = "code"
NUM_NAMED: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class PackageCode:
    """The code of a version.

    Attributes:
        packages: the URLs of the version's packages, in the order in which they are searched for modules.
        program: the module that the version's job ran; None if it is not known.
        refusal: the reason why code of jobs may not run here; None if it may.
        folder: the folder in which packages are unpacked.
    """

    packages: Sequence[str] = ()
    program: str | None = None
    refusal: str | None = None
    folder: Path

    def register_classes(self, file: Path) -> None:
        """Registers the classes that a model needs with Keras, by importing the packages' modules. Runs their code.

        Nothing is unpacked or imported if the model uses only Keras's and Lockstep's classes.

        Args:
            file: the path of the model's file.

        Raises:
            ModelError: there is no package, its code may not run here, or it does not have what the model needs.
            StorageError: a package could not be read.
            InvalidInputError: a package is of an unknown kind.
            CorruptDataError: a package is damaged.
        """
        needed = needed_code(file)
        if any(module.startswith(f"{OWN_LAYERS}.") for module in needed.modules):
            importlib.import_module(OWN_LAYERS)
        if not (missing := _missing(needed)):
            return
        said = f"it needs {_named(missing)}, which {'is' if len(missing) == 1 else 'are'} not Keras's"
        if not self.packages:
            raise ModelError(
                said,
                action="deploy it with --job, so that the job's package goes along, or name one with --package-uri",
            )
        if self.refusal is not None:
            raise ModelError(f"{said}, and code of a job is not loaded here: {self.refusal}")
        self._unpack()
        for module in needed.modules:
            _import(module)
        if self.program is not None and (missing := _missing(needed)):
            _import_program(self.program, missing=missing)
        if missing := _missing(needed):
            raise ModelError(
                f"its package does not register {_named(missing)}",
                action="put @keras.saving.register_keras_serializable(package=...) above it, as it was in training, in "
                "a module that the job's program imports",
            )

    def _unpack(self) -> None:
        folder = self.folder / CODE_FOLDER
        folder.mkdir(exist_ok=True)
        code = [unpack_package(url, data=read_url(url), folder=folder) for url in self.packages]
        sys.path[:0] = dict.fromkeys(str(path) for package in code for path in package.module_path)
        os.chdir(code[0].folder)  # as for a job's program


def _missing(needed: NeededCode) -> list[str]:
    return [name for name in needed.names if keras.saving.get_registered_object(name) is None]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the package's code may raise anything
        reason = (str(error) or "no reason given").splitlines()[0][:300]
        action = ""
        if isinstance(error, ModuleNotFoundError):
            action = "add it to the package, or install it where the service runs"
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
            f"{_named(missing)} may be defined in {program}, the job's program, which cannot be imported without "
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
