"""Output that the commands of ``lockstep data`` share: text from files, lists, features and damage."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console

# The commands import these rooms when they run.
if TYPE_CHECKING:
    from lockstep.data.examples.features import AbstractFeature
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


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Prints notes: remarks that are not about damage."""
    for note in notes:
        console.print(printable(f"note: {note}"))


def describe_feature(feature: AbstractFeature) -> str:
    """Returns a description of a feature: its dtype, its shape, and how it is stored."""
    document = feature.to_json()
    dtype, kind = document["dtype"], document["type"]
    if kind == "sparse":
        keys, sizes = document["index_key"], document["size"]
        keys, sizes = ([keys], [sizes]) if isinstance(keys, str) else (keys, sizes)
        return f"{dtype}, sparse, {describe_shape(sizes)}: {document['value_key']} at {', '.join(keys)}"
    if kind == "fixed_sequence":
        return f"{dtype}, any number of steps, each {describe_shape(document['step_shape'])}"
    if kind == "ragged":
        named = f" of {document['value_key']}" if "value_key" in document else ""
        parts = [f"{name} {argument}" for name, argument in document.get("partitions", ())]
        return f"{dtype}, any number of values{named}{', parted by ' if parts else ''}{', then '.join(parts)}"
    if "shape" not in document:
        return f"{dtype}, any number of values"
    return f"{dtype}, {describe_shape(document['shape'])}{', kept as its bytes' if kind == 'raw' else ''}"


def describe_shape(shape: Sequence[int]) -> str:
    """Returns a shape as text, such as "28 x 28" or "one value"."""
    return " x ".join(map(str, shape)) or "one value"
