"""The text of log entries: ANSI colors become classes, and everything else is shown as it is."""

from __future__ import annotations

from collections.abc import Iterator

import htpy as h
from rich.color import Color
from rich.style import Style
from rich.text import Text

_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def colored(text: str) -> h.Node:
    """Returns a text whose ANSI colors are classes of the style sheet. Nothing of it is taken for HTML.

    Args:
        text: the text, as a program printed it.
    """
    if "\x1b" not in text:
        return text
    return list(_spans(Text.from_ansi(text)))


def _spans(text: Text) -> Iterator[h.Node]:
    plain, done = text.plain, 0
    for span in sorted(text.spans, key=lambda span: span.start):
        start = max(span.start, done)
        if start >= span.end:
            continue
        yield plain[done:start]
        names = _classes(span.style if isinstance(span.style, Style) else Style.parse(span.style))
        yield h.span(class_=names)[plain[start : span.end]] if names else plain[start : span.end]
        done = span.end
    yield plain[done:]


def _classes(style: Style) -> str:
    return " ".join(
        [
            *([f"ansi-{_name(style.color)}"] if style.color is not None and _name(style.color) else []),
            *(["ansi-bold"] if style.bold else []),
            *(["ansi-dim"] if style.dim else []),
        ]
    )


def _name(color: Color) -> str:
    return "" if color.number is None or color.number > 15 else _NAMES[color.number % 8]
