"""Which split a record goes to: decided by its key alone, so that no record changes sides when the data grows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, final

from lockstep.data.packing.options import check_name
from lockstep.errors import InvalidInputError

_HASH_BYTES: Final = 8
_TOLERANCE: Final = 1e-6


@final
class Dealer:
    """Deals records to splits by their keys.

    A key's BLAKE2b digest of 8 bytes, read as a big-endian number and divided by 2**64, is a number from 0 to 1; the
    splits lie behind each other on that line, in their order, each as long as its fraction. Another order of the
    records changes nothing, nor do records that are added or taken away.

    Args:
        fractions: for each split by name its share; together 1. One split alone gets all.

    Raises:
        InvalidInputError: a share is not above 0, or they are not 1 together.
    """

    def __init__(self, fractions: Mapping[str, float]) -> None:
        for split in fractions:
            check_name(split, what="split")
        total = math.fsum(fractions.values())
        usable = fractions and all(0 < share <= 1 for share in fractions.values())  # which NaN is not
        if not usable or abs(total - 1) > _TOLERANCE:
            raise InvalidInputError(
                "the shares of the splits (split)",
                received=dict(fractions),
                allowed="numbers above 0 that are 1 together, such as train=0.8,val=0.1,test=0.1",
            )
        self._fractions = dict(fractions)
        # The last one ends beyond every number there is, whatever the sum was rounded to.
        ends = [*list(accumulate(fractions.values()))[:-1], math.inf]
        self._ends = list(zip(fractions, ends, strict=True))

    @property
    def fractions(self) -> Mapping[str, float]:
        """The splits and their shares."""
        return self._fractions

    def split_of(self, key: str) -> str:
        """Returns the split of a record."""
        if len(self._ends) == 1:
            return self._ends[0][0]
        digest = hashlib.blake2b(_bytes_of(key), digest_size=_HASH_BYTES).digest()
        point = int.from_bytes(digest, "big") / (1 << 8 * _HASH_BYTES)
        return next(split for split, end in self._ends if point < end)


def _bytes_of(key: str) -> bytes:
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, which no text has, but a program's string may
        return key.encode("utf-8", "surrogatepass")


def parse_fractions(text: str) -> dict[str, float]:
    """Reads ``train=0.8,val=0.1,test=0.1``.

    Raises:
        InvalidInputError: it is not of that form, or names a split twice.
    """
    fractions: dict[str, float] = {}
    for part in text.split(","):
        name, separator, share = part.strip().partition("=")
        try:
            value = float(share)
        except ValueError:
            separator = ""
            value = 0.0
        if not separator or name in fractions:
            raise InvalidInputError(
                "the splits (split)",
                received=text,
                allowed="a name, or names and shares, such as train=0.8,val=0.1,test=0.1",
            )
        fractions[name] = value
    Dealer(fractions)
    return fractions
