"""Generates a Containerfile for a program that has none, without any input or output."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Final

from lockstep.errors import ConfigError, MissingInputError
from lockstep.jobs.input.spec import running_python_version

NAMES: Final = ("Containerfile", "Dockerfile")
"""The names of a folder's Containerfile; the first one that exists is used."""

REQUIREMENTS: Final = "requirements.txt"
PROJECT: Final = "pyproject.toml"
MODULES: Final = ("train", "task", "main", "trainer.task", "trainer.train")
"""The usual names of a program's module, in order of preference; used if no module is named."""

_USER: Final = "1000:1000"


def default_base() -> str:
    """Returns the default base image: the one of the Python version that Lockstep runs on."""
    return f"docker.io/library/python:{running_python_version()}-slim"


def find_module(files: Sequence[str]) -> str:
    """Guesses the module of a folder's program.

    It is a module with one of the usual names, or else the only module at the top of the folder.

    Args:
        files: the paths of the folder's files, relative to the folder.

    Raises:
        MissingInputError: no module has a usual name, and the top of the folder has no module or several.
    """
    for module in MODULES:
        if f"{module.replace('.', '/')}.py" in files:
            return module
    modules = [path.removesuffix(".py") for path in files if path.endswith(".py") and "/" not in path]
    if len(modules) != 1:
        raise MissingInputError(
            "cannot tell which module is the program",
            received=modules or "no module at the top of the folder",
            action="name it with --module-name, or give a Containerfile",
        )
    return modules[0]


def write_containerfile(files: Mapping[str, str | None], *, base: str, module: str) -> str:
    """Returns the text of a Containerfile for a folder's program.

    Layers that rarely change come first, so that a change of the code does not install all packages again.

    Args:
        files: the folder's files by relative path, with the content of ``pyproject.toml``; None for other files.
        base: the base image, which must have Python.
        module: the program's module.

    Raises:
        ConfigError: ``pyproject.toml`` is not valid TOML, or its dependencies cannot be used.
    """
    pip = "RUN python3 -m pip install --no-cache-dir --root-user-action=ignore"
    lines = [f"FROM {base}", "WORKDIR /program", "ENV PYTHONUNBUFFERED=1"]
    if REQUIREMENTS in files:
        lines += [f"COPY {REQUIREMENTS} ./", f"{pip} --requirement {REQUIREMENTS}"]
    elif needs := _dependencies(files.get(PROJECT)):
        lines.append(f"{pip} {' '.join(json.dumps(need) for need in needs)}")
    lines += ["COPY . .", f"USER {_USER}", f"ENTRYPOINT {json.dumps(['python3', '-m', module])}"]
    return "\n".join(lines) + "\n"


def _dependencies(project: str | None) -> list[str]:
    """Returns the dependencies that the text of a ``pyproject.toml`` lists."""
    if project is None:
        return []
    try:
        document = tomllib.loads(project)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{PROJECT}: {error}") from None
    table = document.get("project", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{PROJECT}: project", received=table, allowed="a table")
    found = table.get("dependencies", [])
    if not isinstance(found, list) or not all(isinstance(need, str) for need in found):
        raise ConfigError(f"{PROJECT}: project.dependencies", received=found, allowed="a list of requirements")
    if odd := [need for need in found if any(sign in need for sign in "$`\n")]:
        raise ConfigError(f"{PROJECT}: project.dependencies", received=odd, allowed="requirements without $ and `")
    return [str(need) for need in found]
