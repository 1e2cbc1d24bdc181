"""What is left to a person: a comment at the place, which the report is read from."""

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
    """Something that is left to a person.

    Attributes:
        line: where it stands in the migrated script, from 1.
        what: what is to be done, in a sentence.
        link: the page and the part of it that tell more.
    """

    line: int
    what: str
    link: str


def comment_of(what: str, *, link: str) -> cst.EmptyLine:
    """Returns the line that says it in the script."""
    return cst.EmptyLine(comment=cst.Comment(f"{MARK}{what} ({link})"))


def plain(note: str) -> str:
    """Returns a note of the table without Markdown."""
    return " ".join(_MARKDOWN_LINK.sub(r"\1", note).replace("`", "").split())


def read_remarks(source: str) -> tuple[Remark, ...]:
    """Finds what is left to a person in a migrated script."""
    found = ((number, _LINE.match(text)) for number, text in enumerate(source.splitlines(), 1))
    return tuple(Remark(line=number, what=match["what"], link=match["link"]) for number, match in found if match)
