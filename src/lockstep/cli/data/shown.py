"""What the verbs of ``lockstep data`` show alike: words from files, counts, and what is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console

# Imported for types alone: the rooms that do the work are imported by the verbs.
if TYPE_CHECKING:
    from lockstep.data.examples.features import AbstractFeature
    from lockstep.data.finding import Damage

_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
_LABEL_COLUMNS: Final = 10


def printable(text: str) -> str:
    """Returns a text of which nothing moves the cursor, changes colours, or cannot be written at all."""
    return "".join(character if character.isprintable() else _UNKNOWN for character in text)


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


def describe_feature(feature: AbstractFeature) -> str:
    """Returns what a feature of a record is, in words."""
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
    """Returns a shape in words: "28 x 28", "one value"."""
    return " x ".join(map(str, shape)) or "one value"
