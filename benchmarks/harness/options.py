"""Options that all benchmarks have, and how they are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def chosen_from(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Returns a parser of names with commas between them."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; allowed: {', '.join(allowed)}")
        return names

    return parse


def count(text: str) -> int:
    """Parses one positive whole number."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"received {text}; allowed: a whole number of 1 or more")
    return int(text)


def counts(text: str) -> list[int]:
    """Parses positive whole numbers with commas between them."""
    return [count(part) for part in text.split(",")]
