"""The order in which sides are measured."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def turns(names: Iterable[T], *, num_rounds: int, warms_up: bool = False) -> Iterator[tuple[int, T]]:
    """Yields each name once in each round, so that what else the machine does meets all alike.

    Args:
        names: what takes turns. Each round begins with another one.
        num_rounds: how many rounds.
        warms_up: whether a round of number -1 comes first, which does not count.

    Yields:
        The number of the round, from 0, and the name. A dot on standard error follows each.
    """
    order = list(names)
    for number in range(-1 if warms_up else 0, num_rounds):
        first = number % max(1, len(order))
        for name in order[first:] + order[:first]:
            yield number, name
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
