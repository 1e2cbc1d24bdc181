"""The Containerfile of a program that has none: pure."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Final

from lockstep.errors import ConfigError, MissingInputError
from lockstep.jobs.input.spec import running_python_version

NAMES: Final = ("Containerfile", "Dockerfile")
"""Files of a folder that say how its image is built; the first that is there counts."""

REQUIREMENTS: Final = "requirements.txt"
PROJECT: Final = "pyproject.toml"
MODULES: Final = ("train", "task", "main", "trainer.task", "trainer.train")
"""Modules that are taken for the program where nobody names one, in this order."""

_USER: Final = "1000:1000"


def default_base() -> str:
    """Returns the image that one is built on where nobody names another: the Python that Lockstep runs on."""
    return f"docker.io/library/python:{running_python_version()}-slim"


def find_module(files: Sequence[str]) -> str:
    """Returns the module that a folder's program most likely is.

    Args:
        files: the paths of its files within it.

    Raises:
        MissingInputError: there is none of the usual names, and more or less than one module.
    """
    for module in MODULES:
        if f"{module.replace('.', '/')}.py" in files:
            return module
    modules = [path.removesuffix(".py") for path in files if path.endswith(".py") and "/" not in path]
    if len(modules) != 1:
        raise MissingInputError(
            "which module is the program is not clear",
            received=modules or "no module at the top of the folder",
            action="name it with --module-name, or give a Containerfile",
        )
    return modules[0]


def write_containerfile(files: Mapping[str, str | None], *, base: str, module: str) -> str:
    """Returns a Containerfile for a folder's program.

    What changes seldom comes first, so that a change of the code does not install everything anew.

    Args:
        files: the paths of the folder's files; the content of those that say what the program needs.
        base: the image that it is built on, which has Python.
        module: the program.

    Raises:
        ConfigError: a ``pyproject.toml`` is not TOML.
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
    """Returns what a ``pyproject.toml`` says that its program needs."""
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
