"""Batches that workers take by their numbers: those of an epoch once each, in an order that all workers know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain
import keras
import numpy as np
import pytest

from lockstep.data import Batches
from lockstep.errors import InvalidInputError
from lockstep.parameter_server.fitting.data import DatasetCreator, worker_batches
from lockstep.strategies import InputContext
from lockstep.strategies.data_arguments import check_arguments

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


X = np.arange(NUM_BATCHES * BATCH_SIZE, dtype=np.float32)
Y = (X % 3).astype(np.int64)
WEIGHTS = {0: 1.0, 1: 50.0, 2: 0.5}


class Pairs(keras.utils.PyDataset):
    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> Any:
        return batches()[index]


def batches() -> list[Any]:
    return [(X[at : at + BATCH_SIZE], Y[at : at + BATCH_SIZE]) for at in range(0, len(X), BATCH_SIZE)]


def pairs(records: Any) -> Any:
    return X[records], Y[records]


KINDS: dict[str, Callable[[], Any]] = {
    "Batches": lambda: Batches(range(len(X)), batch_size=BATCH_SIZE, transform=pairs),
    "PyDataset": Pairs,
    "Grain": lambda: grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(BATCH_SIZE),
    "generator": lambda: (batch for batch in batches()),
}
KINDS |= {
    "creator of Batches": lambda: DatasetCreator(lambda context: KINDS["Batches"]()),
    "creator of a generator": lambda: DatasetCreator(lambda context: KINDS["generator"]()),
}
ALONE = InputContext()


@pytest.mark.parametrize("kind", ["arrays", *KINDS])
def test_class_weights_weigh_the_rows_of_any_data(kind: str) -> None:
    data = {"x": X, "y": Y, "batch_size": BATCH_SIZE} if kind == "arrays" else {"x": KINDS[kind]()}
    shuffle = {"shuffle": False} if kind in ("arrays", "PyDataset") else {}
    found = worker_batches({**data, **shuffle, "class_weight": WEIGHTS}, context=ALONE)
    assert len(found.example()) == 3
    for number, (x, y) in enumerate(batches()):
        batch = found.batch(number, seed=0)
        expected = [WEIGHTS[int(label)] for label in y]
        for one, other in zip(batch, (x, y, expected), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("argument", ["y", "sample_weight", "batch_size"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_describes_rows_is_refused_beside_data_that_has_them(kind: str, argument: str) -> None:
    given = {"batch_size": 4} if argument == "batch_size" else {argument: Y}
    arguments = {"x": KINDS[kind](), **given}
    with pytest.raises(InvalidInputError, match=f"fit was given {argument} beside"):  # noqa: PT012 - either may raise
        check_arguments("fit", arguments, is_distributed=True)  # as `fit` does before
        worker_batches(arguments, context=ALONE)


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_that_workers_cannot_give_is_refused(kind: str) -> None:
    with pytest.raises(InvalidInputError, match="shuffle of a fit by workers; received 'batch'; allowed: True or Fal"):
        worker_batches({"x": KINDS[kind](), "shuffle": "batch"}, context=ALONE)
    if kind == "PyDataset":
        return
    with pytest.raises(InvalidInputError, match="shuffle=True with data that has its own order"):
        worker_batches({"x": KINDS[kind](), "shuffle": True}, context=ALONE)


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_can_be_is_begun_anew(kind: str) -> None:
    found = worker_batches({"x": KINDS[kind](), "shuffle": False}, context=ALONE)
    first = [found.batch(number, seed=0)[0].tolist() for number in range(NUM_BATCHES)]
    assert first == [x.tolist() for x, _ in batches()]
    if "generator" in kind:
        with pytest.raises(InvalidInputError, match="worker 0 ended before the training did; received '7 batches'"):
            found.batch(NUM_BATCHES, seed=0)
        return
    again = [found.batch(number, seed=0)[0].tolist() for number in range(NUM_BATCHES, 2 * NUM_BATCHES)]
    assert again == first
