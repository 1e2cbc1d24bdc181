"""What of a worker's gradients travels to the servers, where not all of them do."""

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
    """Only the largest gradients travel, each with its index; the rest is added to the worker's next ones.

    Deep Gradient Compression (Lin et al. 2018) sends so the largest 0.1 % of them; the momentum that it corrects by is
    the servers' optimizer's here.

    Args:
        share: of each server's gradients how many travel: at least one of them does. Half of them, with their indices,
            are as many bytes as all.

    Raises:
        InvalidInputError: that is no share, or too large a one to gain anything.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0.0 < self.share < _MAX_SHARE:
            raise InvalidInputError("TopK's share", received=self.share, allowed=f"more than 0, less than {_MAX_SHARE}")

    def count(self, size: int) -> int:
        """Returns how many of so many gradients travel."""
        return min(size, max(1, math.ceil(self.share * size)))


Compression: TypeAlias = Literal["bfloat16"] | TopK
"""How pushes are made smaller."""


def check_compression(given: object) -> Compression | None:
    """Returns what was given as ``compression``.

    Raises:
        InvalidInputError: it is nothing that there is.
    """
    if given is None or isinstance(given, TopK):
        return given
    if given != BFLOAT16:
        raise InvalidInputError(
            "compression", received=given, allowed='None, "bfloat16", or TopK(0.01) or another share'
        )
    return BFLOAT16
