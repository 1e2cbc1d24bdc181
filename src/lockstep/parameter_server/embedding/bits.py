"""Checks 64-bit integers, which JAX truncates to 32 bits: an id could become another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.errors import InvalidInputError


def check_bits(value: Any) -> None:
    """Checks that JAX does not change an integer by truncating it.

    Args:
        value: an array. Only NumPy arrays of 64-bit integers are checked.

    Raises:
        InvalidInputError: a value of the array does not fit into 32 bits.
    """
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int64, np.uint64) or not value.size:
        return
    least, most = int(value.min()), int(value.max())
    if not -(2**31) <= least <= most < 2**31:
        raise InvalidInputError(
            "integers of a batch, from which ids may be computed, do not fit into 32 bits",
            received=f"{least} to {most}",
            allowed=f"{-(2**31)} to {2**31 - 1}",
            action="hash them into a table's rows where the batch is made, or leave them out of it",
        )
