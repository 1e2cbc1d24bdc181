"""Chooses the version that answers a request, in the shares of its model's traffic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from lockstep.service.store import Traffic

Shuffle = Callable[[list[str]], object]
"""Brings a list into a random order."""


@final
class Deck:
    """Deals versions in the shares of a traffic, like cards of a deck that is shuffled again when it is used up.

    So the shares hold exactly over each 100 requests, and over fewer if the percents have a common divisor: with 90 and
    10 percent, over each 10. The order within is random, so that no caller whose requests repeat in a pattern always
    meets the same version. Not thread-safe.

    Args:
        traffic: the traffic, with at least one version.
        shuffle: brings the cards into a random order.
    """

    def __init__(self, traffic: Traffic, *, shuffle: Shuffle) -> None:
        divisor = math.gcd(*(share.percent for share in traffic))
        self.traffic = traffic
        self._shuffle = shuffle
        self._cards = [share.version for share in traffic for _ in range(share.percent // divisor)]
        self._left: list[str] = []

    def deal(self) -> str:
        """Returns the name of the version that answers the next request."""
        if not self._left:
            self._left = list(self._cards)
            self._shuffle(self._left)
        return self._left.pop()

    def __contains__(self, version: object) -> bool:
        return version in self._cards
