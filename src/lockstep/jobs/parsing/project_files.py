"""Parses files in which an operator configures each project, such as quotas."""

from __future__ import annotations

from typing import Generic, TypeVar, final

from pydantic import Field

from lockstep.jobs.parsing.fields import AbstractDocument
from lockstep.jobs.parsing.rules import parse_document

Entry = TypeVar("Entry", bound=AbstractDocument)


@final
class _ProjectFile(AbstractDocument, Generic[Entry]):
    projects: dict[str, Entry] = Field(default_factory=dict[str, Entry])


def parse_projects(kind: type[Entry], *, document: object, source: str) -> dict[str, Entry]:
    """Parses the content of a project file: entries by project name, under ``projects``.

    Args:
        kind: the model of one project's entry.
        document: the value that the YAML parser returned.
        source: the file's name, for error messages.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type.
    """
    return parse_document(_ProjectFile[kind], document=document, source=source).projects
