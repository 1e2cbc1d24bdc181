"""Random numbers for records that do not depend on the thread, process or batch that reads the record."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from lockstep.strategies.splitmix64 import GAMMA, mix

_MANTISSA_BITS: Final = 53


@final
class RecordRandom:
    """Uniform random numbers for the records of a batch, each a pure function of (seed, epoch, record, draw).

    The numbers are outputs of SplitMix64, whose state is a hash of the record's number. The object has no mutable
    state, so it may be used from any thread.

    Args:
        records: the numbers of the batch's records, integers of shape (num_records,).
        seed: the seed of the random numbers, 0 or more.
        epoch: the epoch, from 0.
        stream: the number that distinguishes records of different sources with the same record number, such as the
            files of different workers.
    """

    def __init__(self, records: Sequence[int] | np.ndarray, *, seed: int, epoch: int, stream: int = 0) -> None:
        self._records = np.asarray(records, np.int64)
        self._key = _key(seed, epoch, stream)

    def __len__(self) -> int:
        """Returns the number of records."""
        return len(self._records)

    def fork(self, name: str) -> RecordRandom:
        """Returns independent random numbers for the same records.

        Args:
            name: the purpose of the numbers, such as "mask"; the same name gives the same numbers.
        """
        forked = RecordRandom.__new__(RecordRandom)
        forked._records = self._records
        forked._key = mix(self._key ^ np.uint64(zlib.crc32(name.encode()) + 1))
        return forked

    def uniform(self, num_draws: int) -> np.ndarray:
        """Returns uniform random numbers in [0, 1), the same in every call.

        Args:
            num_draws: the number of values per record. A larger number does not change the first values.

        Returns:
            The random numbers, float64 of shape (num_records, num_draws).
        """
        with np.errstate(over="ignore"):  # all arithmetic is modulo 2**64
            states = mix(self._key + GAMMA * (self._records.view(np.uint64) + np.uint64(1)))
            draws = np.arange(1, num_draws + 1, dtype=np.uint64) * GAMMA
            bits = mix(states[:, np.newaxis] + draws)
        return (bits >> np.uint64(64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def _key(*numbers: int) -> np.ndarray:
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64)
