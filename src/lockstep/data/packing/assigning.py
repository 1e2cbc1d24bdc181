"""Assigns records to splits by key alone, so a record stays in its split when the data set grows."""

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
class SplitAssigner:
    """Assigns records to splits by their keys.

    The BLAKE2b digest of a key (8 bytes), read as a big-endian number and divided by 2**64, is a point from 0 to 1. The
    splits divide this interval in their order, each with the length of its fraction. The split of a record does not
    depend on the order of the records, or on other records.

    Args:
        fractions: the fraction of each split, by the split's name; the sum is 1. A single split gets all records.

    Raises:
        InvalidInputError: a name is invalid, a fraction is not above 0, or the fractions do not sum to 1.
    """

    def __init__(self, fractions: Mapping[str, float]) -> None:
        for split in fractions:
            check_name(split, what="split")
        total = math.fsum(fractions.values())
        usable = fractions and all(0 < share <= 1 for share in fractions.values())  # False for NaN
        if not usable or abs(total - 1) > _TOLERANCE:
            raise InvalidInputError(
                "the fractions of the splits (split)",
                received=dict(fractions),
                allowed="numbers above 0 that sum to 1, such as train=0.8,val=0.1,test=0.1",
            )
        self._fractions = dict(fractions)
        # The last split ends at infinity, so that rounding of the sum leaves no gap.
        ends = [*list(accumulate(fractions.values()))[:-1], math.inf]
        self._ends = list(zip(fractions, ends, strict=True))

    @property
    def fractions(self) -> Mapping[str, float]:
        """The fraction of each split, by the split's name."""
        return self._fractions

    def split_of(self, key: str) -> str:
        """Returns the name of a record's split."""
        if len(self._ends) == 1:
            return self._ends[0][0]
        digest = hashlib.blake2b(_bytes_of(key), digest_size=_HASH_BYTES).digest()
        point = int.from_bytes(digest, "big") / (1 << 8 * _HASH_BYTES)
        return next(split for split, end in self._ends if point < end)


def _bytes_of(key: str) -> bytes:
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate: never in text, but a Python string may have one
        return key.encode("utf-8", "surrogatepass")


def parse_fractions(text: str) -> dict[str, float]:
    """Parses fractions of splits, such as ``train=0.8,val=0.1,test=0.1``.

    Raises:
        InvalidInputError: the text does not have this form, a split occurs twice, or `SplitAssigner` rejects the
            fractions.
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
                allowed="a name, or names and fractions, such as train=0.8,val=0.1,test=0.1",
            )
        fractions[name] = value
    SplitAssigner(fractions)
    return fractions
