"""Finds and checks a job's Python environment before the job is submitted."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.runner.python_environment import Source, find_source
from lockstep.submission.naming import Naming
from lockstep.submission.packing import packed_files


def requirements_path(requirements: Path | None, *, folder: Path | None, naming: Naming) -> str | None:
    """Returns the path of the requirements file within the program's folder, or None if there is none.

    Args:
        requirements: the file that the submitter names; None for none.
        folder: the program's folder; None if there is none.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: the file is outside the folder, so it would not be packed.
    """
    if requirements is None:
        return None
    top = None if folder is None else folder.resolve()
    if top is None or not requirements.resolve().is_relative_to(top):
        where = f"{naming('package_path')}, which is not given" if top is None else str(top)
        raise InvalidInputError(naming("requirements"), received=str(requirements), allowed=f"a file in {where}")
    return requirements.resolve().relative_to(top).as_posix()


def source_of(folder: Path | None, *, asked: PythonEnvironment, naming: Naming) -> Source | None:
    """Returns the file that a program's Python environment would be built from; None if it needs no environment.

    Args:
        folder: the program's folder; None if its code is elsewhere and cannot be checked here.
        asked: the Python environment that the job asks for.
        naming: how the submitter knows the parameters.

    Raises:
        MissingInputError: the file that the job names does not exist, or is not packed.
        InvalidInputError: the file cannot be read, or lists packages that an environment cannot have.
    """
    if folder is None or not folder.is_dir():
        return None
    source = find_source(folder, asked=asked)
    if source is None:
        return None
    if source.path.resolve() not in packed_files(folder, what=naming("package_path")):
        if asked.requirements is None and not asked.project:
            return None  # a file that is not packed does not exist on the node either
        raise MissingInputError(f"{source.name} is excluded from the package", action="see .gitignore, .lockstepignore")
    source.digest()  # raises for packages that no environment can have
    return source


def describe(source: Source | None, *, asked: PythonEnvironment) -> str:
    """Returns a description of the Python environment."""
    if asked.none:
        return "the node's own, as requested"
    if source is None:
        return "the node's own"
    return f"the node's own and the packages of {source.name}, built once per content"
