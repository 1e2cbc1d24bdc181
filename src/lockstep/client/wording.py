"""Sizes, durations and other people's text, as they are shown."""

from __future__ import annotations

from typing import Final

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def duration(seconds: float) -> str:
    """Returns a duration in words: "1 h 02 min", "3 min 20 s", "4.2 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(num_bytes: float) -> str:
    """Returns a number of bytes in words: "17 B", "3.4 KiB", "120 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def printable(text: str) -> str:
    """Returns a line of a job's without characters that control a terminal, because its program chose the text."""
    return "".join(letter if letter.isprintable() else _REPLACEMENT for letter in text.replace("\t", " "))
