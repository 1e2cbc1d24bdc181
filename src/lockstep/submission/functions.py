"""Turns a function into a program that a job can run: a module that defines or imports it, and calls it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Final, final

from lockstep.errors import InvalidInputError
from lockstep.submission.function_source import (
    MAIN,
    check_plain,
    is_installed,
    module_file,
    module_in,
    write_module,
)
from lockstep.submission.naming import Naming

_CALL: Final = """
if __name__ == "__main__":
    from lockstep.submission.calls import call_function

    call_function({name})
"""


@final
@dataclass(frozen=True, kw_only=True)
class FunctionProgram:
    """A function as a program.

    Attributes:
        name: the function's name.
        module: the name of the generated module.
        source: its source.
        folder: the folder that is packed with it; None for none.
    """

    name: str
    module: str
    source: str
    folder: Path | None

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of the generated files, by name."""
        return {f"{self.module}.py": self.source.encode()}


def function_program(function: object, *, folder: Path | None, naming: Naming) -> FunctionProgram:
    """Returns a function as a program.

    A function of a notebook or of the script that runs is written into the program, with everything that it uses. A
    function of a module is imported from it; the module's folder is packed.

    Args:
        function: the function.
        folder: the folder that the submitter names; None to find it.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: it is not a plain function, or it uses something that a job cannot have: the message names
            it.
    """
    inner = inspect.unwrap(function) if callable(function) else function
    if not isinstance(inner, FunctionType) or not callable(function):
        raise InvalidInputError(
            "what to run",
            received=f"a value of type {type(function).__name__}",
            allowed="the path of a script, the name of a module, or a function that `def` defines",
        )
    check_plain(inner)
    name = inner.__name__
    module = f"lockstep_{re.sub(r'[^0-9a-zA-Z_]', '_', name)}"
    if inner.__module__ == MAIN:
        text = write_module(function, folder=folder, naming=naming)
        source = f'"""The function {name} and what it uses, as lockstep.submit wrote them."""\n\n{text}'
    else:
        home, folder = _home(function, inner, folder=folder, naming=naming)
        head = f'"""Calls {name} of {home}, as lockstep.submit wrote it."""'
        source = f"{head}\n\nimport lockstep\nfrom {home} import {name}\n"
    return FunctionProgram(name=name, module=module, source=source + "\n" + _CALL.format(name=name), folder=folder)


def check_call(function: Callable[..., object], *, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that a function takes some arguments.

    Args:
        function: the function.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        InvalidInputError: it does not take them.
    """
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInputError(
            f"{function.__name__}{inspect.signature(function)} does not take these arguments: {error}"
        ) from None


def _home(function: object, inner: FunctionType, *, folder: Path | None, naming: Naming) -> tuple[str, Path]:
    """Returns the module that a function is imported from, and the folder to pack.

    Raises:
        InvalidInputError: the module has no such function, or lies elsewhere.
    """
    home, name = inner.__module__, inner.__name__
    if getattr(sys.modules.get(home), name, None) is not function:
        raise InvalidInputError(f"{home} has no function {name} that is this one", action="define it at its top level")
    place = module_file(home)
    if place is None or is_installed(home, place=place):
        raise InvalidInputError(
            f"{name} belongs to the installed module {home}", action="call it from a function of your own"
        )
    if folder is None:
        top = module_file(home.partition(".")[0])
        folder = (top or place).parent
    if not module_in(folder, module=home, place=place):
        raise InvalidInputError(
            f"the module {home} does not lie in {naming('package_path')}", received=str(folder), allowed=str(place)
        )
    return home, folder
