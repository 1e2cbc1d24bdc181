"""A job's Python environment as its submitter sees it: named by flags, found in the folder, checked at once."""

from __future__ import annotations

from pathlib import Path

from lockstep.cli.package import packed_files
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.runner.python_environment import Source, find_source


def requirements_path(requirements: Path | None, *, folder: Path | None) -> str | None:
    """Returns what ``--requirements`` names, as a path within the program's folder.

    Raises:
        InvalidInputError: it lies elsewhere, from where it would not come along.
    """
    if requirements is None:
        return None
    top = None if folder is None else folder.resolve()
    if top is None or not requirements.resolve().is_relative_to(top):
        where = "--package-path, which is not given" if top is None else str(top)
        raise InvalidInputError("--requirements", received=str(requirements), allowed=f"a file in {where}")
    return requirements.resolve().relative_to(top).as_posix()


def source_of(folder: Path | None, *, asked: PythonEnvironment) -> Source | None:
    """Returns what a program's Python environment would be built from; None where it needs none.

    Args:
        folder: the program's folder; None where its code is elsewhere, and nobody looks into it here.
        asked: what the job says.

    Raises:
        MissingInputError: the file that the job names is not there, or left out of what is packed.
        InvalidInputError: it cannot be read, or asks for what cannot be.
    """
    if folder is None or not folder.is_dir():
        return None
    source = find_source(folder, asked=asked)
    if source is None:
        return None
    if source.path.resolve() not in packed_files(folder):
        if asked.requirements is None and not asked.project:
            return None  # what is not packed is not found on the node either
        raise MissingInputError(
            f"{source.name} is left out of what is packed", action="see .gitignore, .lockstepignore"
        )
    source.digest()  # which refuses what no environment can hold
    return source


def describe(source: Source | None, *, asked: PythonEnvironment) -> str:
    """Says it in words."""
    if asked.none:
        return "the node's own, as was asked"
    if source is None:
        return "the node's own"
    return f"the node's own and what {source.name} asks for, built once for each content on the node"
