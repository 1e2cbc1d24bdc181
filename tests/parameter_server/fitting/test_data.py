"""Batches that workers take by their numbers: those of an epoch once each, in an order that all workers know."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lockstep.parameter_server.fitting.data import worker_batches
from lockstep.strategies import InputContext

NUM_BATCHES, BATCH_SIZE = 7, 3


class Numbers(keras.utils.PyDataset):
    """Batch n has the rows that begin with n times the size of a batch."""

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> Any:
        rows = np.arange(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return rows, rows


def make(kind: str, *, worker: int, shuffle: bool) -> Any:
    rows = np.arange(NUM_BATCHES * BATCH_SIZE)
    arguments: dict[str, Any] = {"x": Numbers()} if kind == "dataset" else {"x": rows, "y": rows}
    context = InputContext(num_input_pipelines=2, input_pipeline_id=worker, num_replicas_in_sync=2)
    return worker_batches({**arguments, "batch_size": BATCH_SIZE, "shuffle": shuffle}, context=context)


def epoch_of(batches: Any, epoch: int, *, seed: int) -> list[list[int]]:
    numbers = range(epoch * NUM_BATCHES, (epoch + 1) * NUM_BATCHES)
    return [batches.batch(number, seed=seed)[0].tolist() for number in numbers]


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_each_epoch_has_all_rows_in_an_order_of_its_own_that_all_workers_know(kind: str) -> None:
    first, second = (make(kind, worker=worker, shuffle=True) for worker in range(2))
    epochs = [epoch_of(first, epoch, seed=5) for epoch in range(3)]
    assert [epoch_of(second, epoch, seed=5) for epoch in (2, 0, 1)] == [epochs[2], epochs[0], epochs[1]]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == list(range(NUM_BATCHES * BATCH_SIZE))
    assert len({str(epoch) for epoch in [*epochs, epoch_of(first, 0, seed=6)]}) == 4


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_without_shuffling_batches_come_as_they_lie(kind: str) -> None:
    expected = np.arange(NUM_BATCHES * BATCH_SIZE).reshape(NUM_BATCHES, BATCH_SIZE).tolist()
    assert epoch_of(make(kind, worker=1, shuffle=False), 4, seed=5) == expected
