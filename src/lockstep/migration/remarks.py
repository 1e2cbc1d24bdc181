"""Remarks about code that a person has to change: comments in the script, from which the report is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

import libcst as cst

MARK: Final = "# lockstep migrate: "
_LINE: Final = re.compile(rf"^\s*{re.escape(MARK)}(?P<what>.*) \((?P<link>docs/\S+)\)$")
_MARKDOWN_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@final
@dataclass(frozen=True, kw_only=True)
class Remark:
    """A remark about code that a person has to change.

    Attributes:
        line: the line of the remark in the migrated script, from 1.
        what: a sentence that says what to do.
        link: the path of the page, with the anchor of the section, that explains it.
    """

    line: int
    what: str
    link: str


def comment_of(what: str, *, link: str) -> cst.EmptyLine:
    """Returns the comment line of a remark for the script."""
    return cst.EmptyLine(comment=cst.Comment(f"{MARK}{what} ({link})"))


def plain(note: str) -> str:
    """Returns a note of the table without its Markdown syntax."""
    return " ".join(_MARKDOWN_LINK.sub(r"\1", note).replace("`", "").split())


def read_remarks(source: str) -> tuple[Remark, ...]:
    """Finds the remarks in a migrated script."""
    found = ((number, _LINE.match(text)) for number, text in enumerate(source.splitlines(), 1))
    return tuple(Remark(line=number, what=match["what"], link=match["link"]) for number, match in found if match)
