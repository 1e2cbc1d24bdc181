"""Random numbers of records: the same ones whichever thread, process or batch the record comes up in."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from lockstep.strategies.splitmix64 import GAMMA, mix

_MANTISSA_BITS: Final = 53


@final
class RecordRandom:
    """Uniform random numbers for the records of a batch, each a pure function of (seed, epoch, record, which draw).

    They are outputs of SplitMix64, from a state that the record's number is hashed into. It may be used from any
    thread: nothing is drawn from it.

    Args:
        records: the numbers of the batch's records, integers of shape (num_records,).
        seed: of all of them, 0 or more.
        epoch: which epoch, from 0.
        stream: tells apart records of different sources that have the same number, such as different workers' files.
    """

    def __init__(self, records: Sequence[int] | np.ndarray, *, seed: int, epoch: int, stream: int = 0) -> None:
        self._records = np.asarray(records, np.int64)
        self._key = _key(seed, epoch, stream)

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._records)

    def fork(self, name: str) -> RecordRandom:
        """Returns other numbers for the same records: what is drawn from it has nothing to do with what is drawn here.

        Args:
            name: for what, such as "mask"; the same name gives the same numbers.
        """
        forked = RecordRandom.__new__(RecordRandom)
        forked._records = self._records
        forked._key = mix(self._key ^ np.uint64(zlib.crc32(name.encode()) + 1))
        return forked

    def uniform(self, num_draws: int) -> np.ndarray:
        """Returns numbers in [0, 1), float64 of shape (num_records, num_draws): asked again, the same again.

        Args:
            num_draws: how many for each record; to ask for more leaves the first ones as they were.
        """
        with np.errstate(over="ignore"):  # all of it is modulo 2**64
            states = mix(self._key + GAMMA * (self._records.view(np.uint64) + np.uint64(1)))
            draws = np.arange(1, num_draws + 1, dtype=np.uint64) * GAMMA
            bits = mix(states[:, np.newaxis] + draws)
        return (bits >> np.uint64(64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def _key(*numbers: int) -> np.ndarray:
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64)
