"""SplitMix64: random bits that are pure functions of counters (Steele, Lea and Flood 2014).

"Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
"""The increment of the state from one number to the next, modulo 2**64."""

_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def mix(state: Any) -> Any:
    """Returns the random bits of states.

    Args:
        state: the states; uint64, a number or an array of any shape.

    Returns:
        The random bits; uint64, of the same shape.
    """
    with np.errstate(over="ignore"):  # all arithmetic is modulo 2**64
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
