"""Files in which an operator says something of projects, such as their quotas."""

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
    """Reads the content of such a file: ``projects`` by name.

    Args:
        kind: what it says of each.
        document: what the YAML parser gave.
        source: the file's name, for errors.

    Raises:
        ConfigError: it has an unknown key or a wrong type.
    """
    return parse_document(_ProjectFile[kind], document=document, source=source).projects
