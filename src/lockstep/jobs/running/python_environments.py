"""Which Python environment a job wants beside the node's own."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Self, final

from pydantic import Field, model_validator

from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Text
from lockstep.jobs.parsing.rules import Violation, raise_violations


@final
class PythonEnvironment(AbstractDocument):
    """What a job's Python environment is built from; a file of its first package that says it, where nothing is given.

    Attributes:
        requirements: path of a requirements file or a ``pylock.toml`` within the first package's folder.
        project: whether it is the folder's ``pyproject.toml``, with its ``uv.lock`` where there is one.
        none: whether none is built, whatever files there are.
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
