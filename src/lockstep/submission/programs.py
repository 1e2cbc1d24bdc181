"""What a job runs: a script, a module or a function, with the folder that is packed and the program's arguments."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast, final

from lockstep.errors import InvalidInputError, MissingInputError, closest
from lockstep.jobs.running.function_calls import FunctionCall
from lockstep.submission.function_source import is_installed
from lockstep.submission.functions import check_call, function_program
from lockstep.submission.naming import Naming

_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SUFFIX: Final = ".py"

Program: TypeAlias = str | os.PathLike[str] | Callable[..., object]
"""The path of a script, which ends with ``.py``; the name of a module; or a function."""


@final
@dataclass(frozen=True, kw_only=True)
class Code:
    """What a job runs.

    Attributes:
        name: what it is, for the job's name.
        module: the module that the job runs.
        args: the program's arguments.
        folder: the folder to pack; None for none.
        added: the contents of generated files, by name; they are packed at the top of the folder.
    """

    name: str
    module: str
    args: tuple[str, ...]
    folder: Path | None
    added: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def read_program(
    program: Program,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    chosen: Collection[str],
    strategy: str | None,
    folder: Path | None,
    naming: Naming,
) -> Code:
    """Returns what a job runs.

    Args:
        program: the program.
        args: the positional arguments of a function, or the arguments of a script or module.
        kwargs: the keyword arguments of a function.
        chosen: the names of the keyword arguments that the trials of a search add.
        strategy: the name of the strategy: the scope that a function is called in, or the value of a script's flag
            ``--strategy``; None for none.
        folder: the folder that the submitter names; None to find it.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: the program or an argument is not valid, or there is no such strategy.
        MissingInputError: the script or the folder does not exist.
    """
    if strategy is not None:
        _check_strategy(strategy)
    if folder is not None and not folder.is_dir():
        raise MissingInputError(f"{naming('package_path')}: no folder {folder}")
    if isinstance(args, str):
        raise InvalidInputError("args", received=args, allowed="a list, such as ['--epochs', 3]")
    if not isinstance(program, str | os.PathLike):
        made = function_program(program, folder=folder, naming=naming)
        both = [name for name in chosen if name in kwargs]
        if both:
            raise InvalidInputError("kwargs has parameters of the search", received=both, action="leave them out")
        check_call(program, args=args, kwargs={**kwargs, **dict.fromkeys(chosen)})
        call = FunctionCall(args=args, kwargs=kwargs, strategy=strategy).to_text()
        return Code(name=made.name, module=made.module, args=(call,), folder=made.folder, added=made.files)
    if kwargs:
        raise InvalidInputError(
            "kwargs are for functions", received=sorted(kwargs), action="give a script its flags in args"
        )
    flags = () if strategy is None else ("--strategy", strategy)
    texts = (*(_argument(value, number) for number, value in enumerate(args)), *flags)
    if isinstance(program, str) and not program.endswith(_SUFFIX):
        return _module(program, args=texts, folder=folder, naming=naming)
    return _script(Path(cast("str | os.PathLike[str]", program)), args=texts, folder=folder, naming=naming)


def _check_strategy(name: str) -> None:
    from lockstep.strategies.names import STRATEGY_NAMES  # refuses Keras on another backend, which matters only here

    if name not in STRATEGY_NAMES:
        raise InvalidInputError(
            "there is no such strategy", received=name, allowed=STRATEGY_NAMES, action=closest(name, STRATEGY_NAMES)
        )


def _argument(value: object, number: int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise InvalidInputError(
            f"args[{number}]", received=value, allowed="texts, numbers and paths, as on a command line"
        )
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else str(value)


def _script(path: Path, *, args: tuple[str, ...], folder: Path | None, naming: Naming) -> Code:
    script = path.expanduser().resolve()
    if not script.is_file():
        raise MissingInputError(f"{naming('module_name')}: no script {script}")
    top = (folder or script.parent).resolve()
    if not script.is_relative_to(top):
        raise InvalidInputError(
            f"{naming('module_name')}: the script is not in {naming('package_path')}",
            received=str(script),
            allowed=f"a script in {top}",
        )
    module = ".".join(script.relative_to(top).with_suffix("").parts)
    if not _MODULE.fullmatch(module):
        raise InvalidInputError(
            f"{naming('module_name')}: Python cannot import a script of this name",
            received=str(path),
            allowed="letters, digits and underscores",
        )
    return Code(name=script.stem, module=module, args=args, folder=top)


def _module(name: str, *, args: tuple[str, ...], folder: Path | None, naming: Naming) -> Code:
    if not _MODULE.fullmatch(name):
        raise InvalidInputError(
            naming("module_name"),
            received=name,
            allowed="the path of a script that ends with .py, the name of a module, or a function",
        )
    found = folder or _folder_of(name.partition(".")[0])
    return Code(name=name.rpartition(".")[2], module=name, args=args, folder=found)


def _folder_of(top: str) -> Path | None:
    """Returns the folder of a module or package that lies on this machine without being installed; else None."""
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    place = None if found is None else found.origin or next(iter(found.submodule_search_locations or ()), None)
    if found is None or place is None or found.origin in {"built-in", "frozen"}:
        return None
    file = Path(place).resolve()
    if is_installed(top, place=file):
        return None
    return file if file.is_dir() else file.parent
