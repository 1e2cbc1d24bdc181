"""Which records a batch has, and which of them a process reads: pure functions of a few numbers."""

from __future__ import annotations

import numpy as np


def epoch_order(num_records: int, *, seed: int | None, epoch: int) -> np.ndarray:
    """Returns the order of an epoch's records.

    Args:
        num_records: how many records there are.
        seed: of the shuffling; None leaves the records in order, in each epoch.
        epoch: which epoch, from 0.

    Returns:
        A permutation of ``0 .. num_records - 1``, int64 of shape (num_records,), the same for the same arguments.
    """
    if seed is None:
        return np.arange(num_records)
    # Philox is counter-based: seeds that are near each other give streams that have nothing to do with each other.
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch]))).permutation(num_records)


def rows_of_process(num_rows: int, *, num_processes: int, process_id: int, num_replicas: int) -> slice:
    """Returns the rows of a global batch that one process reads.

    A batch that divides evenly over the replicas is shared out, in the order of the processes. One that does not is
    read whole by each process, for the strategy to lay it over its devices so that the result stays exact.

    Args:
        num_rows: rows of the global batch.
        num_processes: how many processes train in step.
        process_id: this one's rank, from 0.
        num_replicas: replicas of all processes together, a multiple of their number.
    """
    if num_rows % num_replicas:
        return slice(0, num_rows)
    share = num_rows // num_processes
    return slice(process_id * share, (process_id + 1) * share)
