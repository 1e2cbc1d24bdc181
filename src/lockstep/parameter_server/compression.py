"""Compression of the gradients that a worker pushes to the servers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from lockstep.errors import InvalidInputError

BFLOAT16: Final = "bfloat16"
_MAX_SHARE: Final = 0.5


@final
@dataclass(frozen=True)
class TopK:
    """Sends only the largest gradients, each with its index. The rest is added to the worker's next gradients.

    Deep Gradient Compression (Lin et al. 2018) sends the largest 0.1 % of the gradients this way. Its momentum
    correction is left to the servers' optimizer here.

    Args:
        share: the fraction of each server's gradients that is sent, above 0 and below 0.5. At least one gradient is
            sent. Half of the gradients with their indices would take as many bytes as all gradients.

    Raises:
        InvalidInputError: `share` is not a fraction, or is too large to save anything.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0.0 < self.share < _MAX_SHARE:
            raise InvalidInputError("TopK's share", received=self.share, allowed=f"more than 0, less than {_MAX_SHARE}")

    def count(self, size: int) -> int:
        """Returns how many of `size` gradients are sent."""
        return min(size, max(1, math.ceil(self.share * size)))


Compression: TypeAlias = Literal["bfloat16"] | TopK
"""How pushes are compressed."""


def check_compression(given: object) -> Compression | None:
    """Checks and returns the value of the argument ``compression``.

    Raises:
        InvalidInputError: there is no such compression.
    """
    if given is None or isinstance(given, TopK):
        return given
    if given != BFLOAT16:
        raise InvalidInputError(
            "compression", received=given, allowed='None, "bfloat16", or TopK(0.01) or another share'
        )
    return BFLOAT16
