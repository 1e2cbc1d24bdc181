"""Which records a batch has: a pure function of a few numbers."""

from __future__ import annotations

import numpy as np


def epoch_order(num_records: int, *, seed: int | None, epoch: int, stream: int = 0) -> np.ndarray:
    """Returns the order of an epoch's records.

    Args:
        num_records: how many records there are.
        seed: of the shuffling; None leaves the records in order, in each epoch.
        epoch: which epoch, from 0.
        stream: gives readers of different records different orders from one seed.

    Returns:
        A permutation of ``0 .. num_records - 1``, int64 of shape (num_records,), the same for the same arguments.
    """
    if seed is None:
        return np.arange(num_records)
    # Philox is counter-based: seeds that are near each other give streams that have nothing to do with each other.
    entropy = [seed, epoch, stream] if stream else [seed, epoch]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).permutation(num_records)
