"""Defines the Python environment that a job needs in addition to the node's own packages."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Self, final

from pydantic import Field, model_validator

from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Text
from lockstep.jobs.parsing.rules import Violation, raise_violations


@final
class PythonEnvironment(AbstractDocument):
    """The source of a job's Python environment. If no field is set, a file of the first package decides.

    Attributes:
        requirements: the path of a requirements file or a ``pylock.toml`` within the first package's folder.
        project: whether to use the folder's ``pyproject.toml``, with its ``uv.lock`` if it has one.
        none: whether to build no environment, whichever files there are.
    """

    requirements: Text | None = Field(default=None, min_length=1)
    project: Flag = False
    none: Flag = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        found: list[Violation] = []
        given = [name for name in ("requirements", "project", "none") if getattr(self, name)]
        if len(given) > 1:
            allowed = f"not together with {given[0]}"
            found.append(Violation(path=(given[1],), received=getattr(self, given[1]), allowed=allowed))
        if self.requirements is not None:
            path = PurePosixPath(self.requirements)
            if path.is_absolute() or ".." in path.parts:
                allowed = "a path within the folder of the program's code"
                found.append(Violation(path=("requirements",), received=self.requirements, allowed=allowed))
        raise_violations(found)
        return self
