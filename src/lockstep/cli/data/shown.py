"""Words that come from files, as they may stand on a terminal."""

from __future__ import annotations

from typing import Final

_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Returns a text of which nothing moves the cursor, changes colours, or cannot be written at all."""
    return "".join(character if character.isprintable() else _UNKNOWN for character in text)
