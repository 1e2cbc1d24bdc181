"""What each worker makes for itself, once, when it is first needed."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest

import lockstep
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.parameter_server.scheduling.per_worker import (
    DataEndedError,
    PerWorkerDataset,
    PerWorkerObjects,
    TakenBatch,
    WorkerIterator,
)
from lockstep.strategies.input import InputContext


def make_things(*datasets: Any, values: tuple[Callable[..., Any], ...] = ()) -> PerWorkerObjects:
    context = InputContext(num_input_pipelines=3, input_pipeline_id=1, num_replicas_in_sync=3)
    return PerWorkerObjects(datasets=datasets, values=values, context=context, process_name="worker 1")


def test_a_thing_is_made_once_and_with_the_workers_place_where_it_is_asked_for() -> None:
    made: list[Any] = []

    def of_place(context: InputContext) -> list[int]:
        made.append(context.input_pipeline_id)
        return [context.input_pipeline_id] * 2

    def of_none(size: int = 3) -> list[int]:
        made.append(size)
        return [size]

    things = make_things(of_place, of_none, [7, 8], values=(lambda: object(),))
    assert made == []
    assert list(things.resolve(["iterator", 0, 0, 0])) == [1, 1]
    assert list(things.resolve(["iterator", 0, 1, 0])) == [1, 1]
    assert list(things.resolve(["iterator", 1, 0, 0])) == [3]
    assert list(things.resolve(["iterator", 2, 0, 0])) == [7, 8]
    assert things.resolve(["dataset", 0]) == [1, 1]
    assert things.resolve(["values", 0]) is things.resolve(["values", 0])
    assert made == [1, 3]


def test_each_iterator_over_a_function_s_data_begins_anew() -> None:
    def pass_once() -> Iterator[int]:
        yield from range(3)

    things = make_things(pass_once)
    first = things.resolve(["iterator", 0, 0, 0])
    assert [next(first), next(first)] == [0, 1]
    second = things.resolve(["iterator", 0, 1, 0])
    assert list(second) == [0, 1, 2]
    assert next(first) == 2, "the first pass is not the second one's"


def test_iterators_that_the_coordinator_has_dropped_are_let_go_of_with_what_they_keep() -> None:
    closed: list[int] = []

    def endless() -> Iterator[int]:
        number = next(numbers)
        try:
            yield from itertools.repeat(number)
        finally:
            closed.append(number)

    numbers = itertools.count()
    things = make_things(endless, endless)
    for place in range(4):
        assert next(things.resolve(["iterator", 0, place, max(0, place - 1)])) == place
    assert next(things.resolve(["iterator", 1, 0, 0])) == 4, "other data have numbers of their own"
    gc.collect()  # the first pass is also the data set's own
    assert closed == [1], "the last two are still somebody's"
    assert next(things.resolve(["iterator", 0, 2, 2])) == 2, "it goes on"
    assert next(things.resolve(["iterator", 0, 3, 2])) == 3


def test_a_data_set_knows_the_first_of_its_iterators_that_somebody_has() -> None:
    dataset = PerWorkerDataset(object(), 0)
    assert dataset.first_iterator == 0
    kept = [iter(dataset) for _ in range(3)]
    assert dataset.first_iterator == 0
    del kept[0]
    assert dataset.first_iterator == 1
    del kept[1]
    assert dataset.first_iterator == 1
    del kept[0]
    assert dataset.first_iterator == 0, "nobody has any"
    assert iter(dataset).number == 3


def test_an_iterator_goes_on_where_it_was_and_says_when_its_data_have_ended() -> None:
    things = make_things(lambda: iter(range(3)))
    iterator = things.resolve(["iterator", 0, 0, 0])
    assert [next(iterator), next(iterator)] == [0, 1]
    assert next(things.resolve(["iterator", 0, 0, 0])) == 2
    for _ in range(2):
        with pytest.raises(DataEndedError, match="data of worker 1 have ended after 3 batches; have them repeat"):
            next(iterator)


def test_a_keras_data_set_is_read_by_its_numbers() -> None:
    class Numbers(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return np.full(2, index)

    found = list(make_things(Numbers()).resolve(["iterator", 0, 0, 0]))
    np.testing.assert_array_equal(found, [[0, 0], [1, 1], [2, 2]])


def test_what_the_workers_script_has_not_asked_for_is_refused() -> None:
    things = make_things(lambda: 5)
    with pytest.raises(InvalidInputError, match="worker 1 has no such per-worker values; received 0"):
        things.resolve(["values", 0])
    with pytest.raises(InvalidInputError, match="no such per-worker dataset; received 1"):
        things.resolve(["iterator", 1, 0, 0])
    with pytest.raises(InvalidInputError, match="a per-worker data set is not iterable; received 'int'"):
        things.resolve(["iterator", 0, 0, 0])
    for reference in (["code", 0], ["dataset", "0"], ["iterator", 0], []):
        with pytest.raises(CorruptDataError):
            things.resolve(reference)


def test_the_coordinator_has_no_batches() -> None:
    dataset = PerWorkerDataset(object(), 0)
    first, second = iter(dataset), iter(dataset)
    assert (first.number, second.number) == (0, 1)
    with pytest.raises(InvalidInputError, match="taken in the coordinator, which has none"):
        next(first)


def test_a_batch_is_not_taken_while_code_is_traced() -> None:
    iterator = WorkerIterator(lambda: iter([np.ones(2)] * 2), process_name="worker 0")

    @lockstep.function
    def step(batches: Any) -> Any:
        return next(batches).sum()

    with pytest.raises(InvalidInputError, match="taken within a function that is being compiled"):
        step(iterator)
    assert float(step(TakenBatch(np.ones(2)))) == 2
    assert float(step(TakenBatch(np.full(2, 3.0)))) == 6, "another batch is no constant of the program"


def test_two_batches_of_one_iterator_are_refused_in_compiled_code() -> None:
    @jax.jit
    def step(batches: Any) -> Any:
        return next(batches) + next(batches)

    with pytest.raises(InvalidInputError, match="took two batches from an iterator in one call; allowed: one"):
        step(TakenBatch(np.ones(2)))
