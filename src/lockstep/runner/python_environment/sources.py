"""Finds the file in a program's folder that its Python environment is built from, and what decides its content."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.jobs.running.python_environments import PythonEnvironment

PROJECT_FILE: Final = "pyproject.toml"
LOCK_FILE: Final = "uv.lock"
REQUIREMENTS_FILES: Final = ("pylock.toml", "requirements.lock", "requirements.txt")
"""Files that specify a program's packages by themselves; the first one that exists is used."""

_OTHER_FILE: Final = re.compile(r"^(?:-r|-c|--requirements?|--constraints?)(?:\s*=\s*|\s*)(\S.*)$")
_EDITABLE: Final = re.compile(r"^(?:-e|--editable)(?:\s|=)")
_LOCAL: Final = re.compile(r"^[./]|\s@\s+(?:file:|[./])|^file:")
_LOCAL_SOURCE: Final = re.compile(
    r"\b(?:editable|directory|virtual|path)\s*=\s*[\"'](?!\.[\"'])|\bworkspace\s*=\s*true"
)


@final
class SourceKind(StrEnum):
    """The kind of file."""

    REQUIREMENTS = "requirements"
    """A requirements file, or a ``pylock.toml``."""
    PROJECT = "project"
    """A ``pyproject.toml`` with dependencies."""
    LOCKED_PROJECT = "locked project"
    """A ``pyproject.toml`` with its ``uv.lock``."""


@final
@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a Python environment.

    Attributes:
        kind: the kind of file.
        folder: the folder of the program.
        name: the path of the file within the folder.
    """

    kind: SourceKind
    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / self.name

    def digest(self) -> str:
        """Returns a digest of everything that decides the content, in hexadecimal.

        It covers the file and the files that it names. If one of them names code of the folder, it covers the whole
        folder.

        Raises:
            InvalidInputError: If a file asks for an editable package, whose code would stay in the folder, or if the
                ``pyproject.toml`` is not valid TOML.
        """
        files = [self.folder / PROJECT_FILE, self.folder / LOCK_FILE] if self.kind is SourceKind.LOCKED_PROJECT else []
        files += sorted(_with_included(self.path, folder=self.folder)) if self.kind is SourceKind.REQUIREMENTS else []
        files = files or [self.path]
        if any(self._references_local_code(path) for path in files):
            files = [path for path in sorted(self.folder.rglob("*")) if "__pycache__" not in path.parts]
        hashed = hashlib.sha256(self.kind.encode())
        for path in files:
            if path.is_file():
                content = path.read_bytes()
                name = path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else path.name
                hashed.update(f"{name}\0{len(content)}\0".encode() + content)
        return hashed.hexdigest()

    def _references_local_code(self, path: Path) -> bool:
        """Returns whether a file names code of the folder, other than the project itself."""
        if not path.is_file():
            return False
        if self.kind is SourceKind.REQUIREMENTS and path.suffix != ".toml":
            return any(_is_local(line, path=path) for line in _lines(path))
        text = path.read_text(errors="replace")
        dynamic = path.name == PROJECT_FILE and "dependencies" in _table(path, "project").get("dynamic", ())
        return dynamic or _LOCAL_SOURCE.search(text) is not None


def find_source(folder: Path, *, asked: PythonEnvironment) -> Source | None:
    """Returns the source of a program's Python environment; None if it needs none.

    A lock file is preferred to the file that it was made from, and a requirements file to a ``pyproject.toml``.

    Args:
        folder: the folder of the program.
        asked: the environment that the job asks for.

    Raises:
        MissingInputError: If the file that the job names does not exist.
        InvalidInputError: If a ``pyproject.toml`` is not valid TOML, or if the job names it and it has no dependencies.
    """
    if asked.none:
        return None
    if asked.requirements is not None:
        return _named(folder, asked.requirements)
    project = folder / PROJECT_FILE
    if asked.project:
        if not project.is_file():
            raise MissingInputError(f"the job's environment: no {PROJECT_FILE} in {folder.name}")
        return _project(folder, required=True)
    if project.is_file() and (folder / LOCK_FILE).is_file():
        return _project(folder, required=False)
    for name in REQUIREMENTS_FILES:
        if (folder / name).is_file():
            return Source(kind=SourceKind.REQUIREMENTS, folder=folder, name=name)
    return _project(folder, required=False) if project.is_file() else None


def _named(folder: Path, name: str) -> Source:
    if not (folder / name).is_file():
        raise MissingInputError(
            f"the job's environment: no file {name} in {folder.name}",
            action="name a file of the program's folder that is packed with it",
        )
    kind = SourceKind.PROJECT if Path(name).name == PROJECT_FILE else SourceKind.REQUIREMENTS
    return Source(kind=kind, folder=folder, name=name)


def _project(folder: Path, *, required: bool) -> Source | None:
    if (folder / LOCK_FILE).is_file():
        return Source(kind=SourceKind.LOCKED_PROJECT, folder=folder, name=LOCK_FILE)
    table = _table(folder / PROJECT_FILE, "project")
    if table.get("dependencies") or "dependencies" in table.get("dynamic", ()):
        return Source(kind=SourceKind.PROJECT, folder=folder, name=PROJECT_FILE)
    if required:
        raise InvalidInputError(f"{PROJECT_FILE} names no dependencies", allowed="[project] with dependencies")
    return None


def _table(path: Path, name: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path.name} is not TOML: {error}") from None
    table = document.get(name)
    return table if isinstance(table, dict) else {}


def _lines(path: Path) -> Iterator[str]:
    """Yields the lines of a requirements file, with continued lines joined and without comments."""
    text = path.read_text(errors="replace").replace("\\\n", " ")
    for line in text.splitlines():
        stripped = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if stripped:
            yield stripped


def _with_included(path: Path, *, folder: Path) -> set[Path]:
    """Returns a requirements file and the files that it includes, directly or not."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        if file.suffix == ".toml":
            continue
        for line in _lines(file):
            other = _OTHER_FILE.match(line)
            if other is not None and "://" not in other[1]:
                waiting.append(file.parent / other[1].strip("\"'"))
    return found


def _is_local(line: str, *, path: Path) -> bool:
    if _EDITABLE.match(line):
        raise InvalidInputError(
            f"{path.name}: an environment outlives the job's folder, and cannot hold an editable package",
            received=line,
            allowed="the package's path without -e",
        )
    return _LOCAL.search(line) is not None
