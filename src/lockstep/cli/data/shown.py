"""Output that the commands of ``lockstep data`` share: text from files, lists and damage."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

# The commands import these rooms when they run.
if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.data.finding import Damage

_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
_LABEL_COLUMNS: Final = 10


def printable(text: str) -> str:
    """Returns a text in which U+FFFD replaces all characters that are not printable, such as control characters."""
    return "".join(character if character.isprintable() else _UNKNOWN for character in text)


def first_of(words: Sequence[str], *, num_characters: int) -> str:
    """Returns words separated by commas; if there are too many, the first ones and the number of others.

    Args:
        words: the words, at least one.
        num_characters: the maximum length of the list of words that are shown, unless the first word is longer.
    """
    shown = words[0]
    for number, word in enumerate(words[1:], start=1):
        if len(shown) + len(word) + 2 > num_characters:
            return f"{shown}, ... ({len(words) - number:,} more)"
        shown += f", {word}"
    return shown


def show_fields(console: Console, fields: Mapping[str, Iterable[str]]) -> None:
    """Prints fields with their names, one value per line, wrapped at the console's width."""
    for name, values in fields.items():
        label = name
        for value in values:
            first, rest = f"{label:<{_LABEL_COLUMNS}}", " " * _LABEL_COLUMNS
            console.print(
                textwrap.fill(
                    printable(value),
                    width=max(console.width, 2 * _LABEL_COLUMNS),
                    initial_indent=first,
                    subsequent_indent=rest,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            label = ""


def show_damages(console: Console, damages: Sequence[Damage]) -> None:
    """Prints one line for each damage, unless there is only one: the error at the command's end reports that."""
    if len(damages) > 1:
        for damage in damages:
            console.print(printable(f"{damage.error}"))


def damage_documents(damages: Iterable[Damage]) -> list[dict[str, Any]]:
    """Returns damages as JSON: where each is, and what it is."""
    return [{"url": damage.url, "record": damage.record, "message": str(damage.error)} for damage in damages]


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Prints notes: remarks that are not about damage."""
    for note in notes:
        console.print(printable(f"note: {note}"))
