"""What the verbs of ``lockstep data`` show alike: words from files, counts, and what is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console

if TYPE_CHECKING:
    from lockstep.data.finding import Damage

_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
_LABEL_COLUMNS: Final = 10


def printable(text: str) -> str:
    """Returns a text of which nothing moves the cursor, changes colours, or cannot be written at all."""
    return "".join(character if character.isprintable() else _UNKNOWN for character in text)


def counted(number: int, noun: str) -> str:
    """Returns a number and what it counts: "1 file", "1,024 files"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_of(words: Sequence[str], *, num_characters: int) -> str:
    """Returns words behind each other, and of many the first ones and how many more there are.

    Args:
        words: at least one.
        num_characters: how much room there is.
    """
    shown = words[0]
    for number, word in enumerate(words[1:], start=1):
        if len(shown) + len(word) + 2 > num_characters:
            return f"{shown}, ... ({len(words) - number:,} more)"
        shown += f", {word}"
    return shown


def show_fields(console: Console, fields: Mapping[str, Iterable[str]]) -> None:
    """Prints what is known by name, one value below the other, broken at the console's width."""
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
    """Prints what is wrong, a line each; a single one is left to the error that the verb ends with."""
    if len(damages) > 1:
        for damage in damages:
            console.print(printable(f"{damage.error}"))


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Prints what is worth knowing and no damage."""
    for note in notes:
        console.print(printable(f"note: {note}"))
