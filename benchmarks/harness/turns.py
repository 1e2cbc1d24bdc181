"""The order in which sides are measured."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

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


def figures_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the figures of rounds by their names: a value for each round that has one."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: [one[name] for one in rounds if name in one] for name in names}
