"""Distributed data sets in one process; `test_datasets_of_workers` has the rest."""

import gc
import math
from typing import Any

import grain
import jax
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data import Batches
from lockstep.errors import InvalidInputError
from lockstep.strategies import InputContext, MirroredStrategy
from lockstep.strategies.datasets import (
    DistributedDataset,
    InputOptions,
    ValueContext,
    distribute_dataset,
    distribute_from_function,
    distribute_values,
)
from lockstep.strategies.input import AutoShardPolicy
from lockstep.strategies.loops.replica import PerReplica
from lockstep.strategies.mesh import ReplicatedLayout

NUM_ROWS = 22


def layout(num_replicas: int = 4) -> ReplicatedLayout:
    return ReplicatedLayout(jax.devices()[:num_replicas], name="test")


def distribute(dataset: Any, *, over: Any = None, **options: Any) -> DistributedDataset:
    found = layout() if over is None else over
    context = InputContext(num_replicas_in_sync=found.num_replicas)
    return distribute_dataset(found, context, dataset, InputOptions(**options) if options else None)


def pairs(batch_size: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of 22 rows: inputs of shape (rows, 2), and the rows' numbers."""
    rows = np.arange(NUM_ROWS)
    inputs = np.stack([rows, -rows], axis=1).astype(np.float32)
    return [
        (inputs[start : start + batch_size], rows[start : start + batch_size]) for start in range(0, 22, batch_size)
    ]


def rows_of(dataset: Any) -> list[int]:
    """All rows' numbers, in order."""
    return [int(row) for _, labels in dataset for value in labels.values for row in value]


class Numbered(keras.utils.PyDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ended = 0

    def __len__(self) -> int:
        return len(pairs())

    def __getitem__(self, batch: int) -> Any:
        return pairs()[batch]

    def on_epoch_end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_rows", [1, 3, 12, 16])
def test_each_replica_has_its_rows(num_replicas: int, num_rows: int) -> None:
    over = layout(num_replicas)
    batch = {"x": np.arange(2 * num_rows).reshape(num_rows, 2), "none": None, "scalar": 3.0}
    (found,) = distribute([batch], over=over)
    groups = math.gcd(num_rows, num_replicas)
    assert found["none"] is None
    assert isinstance(found["x"], PerReplica)
    assert found["x"].num_replicas == found["scalar"].num_replicas == groups
    np.testing.assert_array_equal(np.concatenate(found["x"].values), batch["x"])
    assert [value.tolist() for value in found["scalar"].values] == [3.0] * groups
    # Each device holds the rows of its group, and nothing else.
    shapes = {shard.data.shape for shard in found["x"].stacked.addressable_shards}
    assert shapes == {(1, num_rows // groups, 2)}
    assert found["x"].stacked.sharding.device_set == set(over.devices)


@pytest.mark.parametrize(
    "make",
    [
        pairs,
        lambda: lambda: iter(pairs()),
        lambda: Numbered(),
        lambda: Numbered(workers=2),
        lambda: grain.MapDataset.source([(x, y) for xs, ys in pairs() for x, y in zip(xs, ys, strict=True)]).batch(8),
        lambda: grain.MapDataset.source(pairs()).to_iter_dataset(),
        lambda: Batches(range(NUM_ROWS), batch_size=8, transform=lambda rows: (np.zeros(len(rows)), np.array(rows))),
    ],
    ids=["list", "function", "py_dataset", "workers", "map_dataset", "iter_dataset", "batches"],
)
def test_each_pass_yields_every_row_in_order(make: Any) -> None:
    data = make()
    dataset = distribute(data)
    for _ in range(2):
        assert rows_of(dataset) == list(range(NUM_ROWS))
    if isinstance(data, Numbered):
        assert data.ended == 2


def test_a_pass_that_is_left_ends_the_data_set_s_epoch() -> None:
    data = Numbered(workers=2)
    iterator = iter(distribute(data))
    next(iterator)
    del iterator
    gc.collect()
    assert data.ended == 1


def test_torch_and_tf_data() -> None:
    torch = pytest.importorskip("torch")
    inputs, labels = (np.concatenate(column) for column in zip(*pairs(), strict=True))
    rows = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels))
    loader = distribute(torch.utils.data.DataLoader(rows, batch_size=8))
    assert (rows_of(loader), len(loader)) == (list(range(NUM_ROWS)), 3)
    tensorflow = pytest.importorskip("tensorflow")
    sliced = distribute(tensorflow.data.Dataset.from_tensor_slices((inputs, labels)).batch(8))
    assert (rows_of(sliced), len(sliced)) == (list(range(NUM_ROWS)), 3)


def test_lengths() -> None:
    assert len(distribute(pairs())) == 3
    assert len(distribute(Numbered())) == 3
    for endless in (lambda: iter(pairs()), grain.MapDataset.source(pairs()).repeat()):
        with pytest.raises(TypeError, match="does not know how many"):
            len(distribute(endless))


def test_batches_go_on_in_the_middle_of_an_epoch() -> None:
    batches = Batches(range(NUM_ROWS), batch_size=8, transform=lambda rows: (np.zeros(len(rows)), np.array(rows)))
    batches.seek(epoch=0, batch=2)
    dataset = distribute(batches)
    assert rows_of(dataset) == list(range(16, 22))
    assert rows_of(dataset) == list(range(NUM_ROWS))


def test_a_batch_without_rows_is_left_out() -> None:
    empty = (np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    assert rows_of(distribute([empty, *pairs(), empty])) == list(range(NUM_ROWS))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 5), max_size=9), st.sampled_from([1, 2, 3]))
def test_a_function_makes_batches_of_a_replica_s_size(sizes: list[int], num_replicas: int) -> None:
    starts = np.cumsum([0, *sizes])
    batches = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=False)]
    asked: list[InputContext] = []

    def make(context: InputContext) -> Any:
        asked.append(context)
        return batches

    context = InputContext(num_replicas_in_sync=num_replicas)
    dataset = distribute_from_function(layout(num_replicas), context, make)
    found = [np.concatenate(batch.values) for batch in dataset]
    assert asked == [context]
    assert len(found) == len(dataset) == -(-len(sizes) // num_replicas)
    for number, rows in enumerate(found):
        expected = batches[number * num_replicas : (number + 1) * num_replicas]
        np.testing.assert_array_equal(rows, np.concatenate(expected))


def test_a_value_for_each_replica() -> None:
    def value(context: ValueContext) -> Any:
        assert context.num_replicas_in_sync == 4
        return {"id": context.replica_id_in_sync_group, "row": np.full(2, context.replica_id_in_sync_group)}

    found = distribute_values(layout(), value)
    assert [int(number) for number in found["id"].values] == [0, 1, 2, 3]
    assert [row.tolist() for row in found["row"].values] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert {shard.data.shape for shard in found["row"].stacked.addressable_shards} == {(1, 2)}
    with pytest.raises(InvalidInputError, match="have different structures, shapes or dtypes"):
        distribute_values(layout(), lambda context: np.zeros(context.replica_id_in_sync_group))


@pytest.mark.parametrize("num_ahead", [0, 1, 3])
def test_no_more_is_placed_ahead_than_was_said(num_ahead: int) -> None:
    made: list[int] = []

    def make() -> Any:
        for number in range(6):
            made.append(number)
            yield np.array([number])

    iterator = iter(distribute(make, experimental_per_replica_buffer_size=num_ahead))
    for number in range(6):
        assert int(iterator.get_next().values[0][0]) == number
        assert len(made) == min(number + 1 + num_ahead, 6)
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(InvalidInputError, match="0 or more"):
        InputOptions(experimental_per_replica_buffer_size=-1)


def test_a_batch_is_not_taken_while_a_function_is_compiled() -> None:
    iterator = iter(distribute(pairs()))

    @jax.jit
    def step(x: Any) -> Any:
        return x + next(iterator)[1].stacked.sum()

    with pytest.raises(InvalidInputError, match=r"train_step\(next\(iterator\)\)"):
        step(1.0)
    assert len(list(iterator)) == 3  # none is lost


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ((np.zeros(3), np.zeros(3)), r"received 'tuple'.*cut arrays into batches first"),
        (np.zeros(3), r"received 'ndarray'.*cut arrays into batches first"),
        (7, "received 'int'"),
    ],
)
def test_what_is_no_data_set_of_batches(dataset: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        distribute(dataset)


def test_a_distributed_data_set_is_not_distributed_again() -> None:
    with pytest.raises(InvalidInputError, match="received 'a distributed one'"):
        distribute(distribute(pairs()))


def test_batches_that_cannot_be_laid_out() -> None:
    with pytest.raises(InvalidInputError, match=r"different numbers of rows; received \[2, 3\]"):
        list(distribute([(np.zeros(2), np.zeros(3))]))
    with pytest.raises(InvalidInputError, match="an array of <U3"):
        list(distribute([np.array(["one", "two"])]))
    passes = distribute(iter(pairs()))
    assert rows_of(passes) == list(range(NUM_ROWS))
    with pytest.raises(InvalidInputError, match="a generator can be read once"):
        list(passes)


def test_policies_that_do_not_fit() -> None:
    with pytest.raises(InvalidInputError, match="this data has none that are known"):
        distribute(pairs(), auto_shard_policy=AutoShardPolicy.FILE)
    batches = Batches(range(4), batch_size=2, transform=np.array)
    with pytest.raises(InvalidInputError, match="received 'DATA, distributed with OFF'"):
        distribute(batches, auto_shard_policy=AutoShardPolicy.OFF)
    assert len(distribute(batches, auto_shard_policy=AutoShardPolicy.DATA)) == 2


def test_fit_takes_a_distributed_data_set() -> None:
    strategy = MirroredStrategy(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])
    batches = [(inputs / NUM_ROWS, labels / NUM_ROWS) for inputs, labels in pairs()]

    def fit(data: Any, **options: Any) -> Any:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        history = model.fit(data, epochs=2, shuffle=False, verbose=0, **options).history["loss"]
        return model, [*map(np.asarray, model.variables), history]

    model, found = fit(distribute(batches, over=strategy.layout))
    _, expected = fit((batch for _ in range(2) for batch in batches), steps_per_epoch=3)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    inputs = distribute([inputs for inputs, _ in batches], over=strategy.layout)
    assert model.predict(inputs, verbose=0).shape == (NUM_ROWS, 1)
    with pytest.raises(InvalidInputError, match="distributed by another strategy than the model's"):
        model.evaluate(distribute(batches), verbose=0)
