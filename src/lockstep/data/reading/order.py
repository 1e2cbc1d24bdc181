"""Computes the order of an epoch's records as a pure function of a few numbers."""

from __future__ import annotations

import numpy as np


def epoch_order(num_records: int, *, seed: int | None, epoch: int, stream: int = 0) -> np.ndarray:
    """Returns the order of an epoch's records.

    Args:
        num_records: the number of records.
        seed: the seed of the shuffling; None keeps the records in order in every epoch.
        epoch: the epoch, from 0.
        stream: the number of the reader, so that readers of different records get different orders from one seed.

    Returns:
        A permutation of ``0 .. num_records - 1``, int64 of shape (num_records,), the same for the same arguments.
    """
    if seed is None:
        return np.arange(num_records)
    # Philox is a counter-based generator: similar seeds give independent streams.
    entropy = [seed, epoch, stream] if stream else [seed, epoch]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).permutation(num_records)
