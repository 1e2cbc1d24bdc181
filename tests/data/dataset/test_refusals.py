"""Bad input is refused in one line, where it is given or when it is met."""

import grain
import numpy as np
import pytest

from lockstep.data import Dataset, Options, TensorSpec, TFRecordDataset
from lockstep.errors import LockstepError

TEN = Dataset.range(10)
GROWING = Dataset.range(1, 4).map(lambda v: np.zeros(v))

BAD = {
    "rows of two numbers": lambda: Dataset.from_tensor_slices((np.zeros(3), np.zeros(4))),
    "rows of a number": lambda: Dataset.from_tensor_slices(3),
    "rows of nothing": lambda: Dataset.from_tensor_slices({}),
    "an object": lambda: Dataset.from_tensor_slices(object()),
    "no element": lambda: Dataset.from_tensors(None),
    "range of nothing": lambda: Dataset.range(),
    "range in steps of 0": lambda: Dataset.range(1, 2, 0),
    "range of a fraction": lambda: Dataset.range(1.5),
    "no generator": lambda: Dataset.from_generator([1, 2]),
    "a generator of nothing": lambda: list(Dataset.from_generator(lambda: 5)),
    "a generator's dtype": lambda: list(
        Dataset.from_generator(lambda: iter(["x"]), output_signature=TensorSpec((), "int32"))
    ),
    "a generator's shape": lambda: list(
        Dataset.from_generator(lambda: iter([[1, 2]]), output_signature=TensorSpec((3,), "int32"))
    ),
    "a generator's structure": lambda: list(
        Dataset.from_generator(lambda: iter([(1, 2)]), output_signature=(TensorSpec((), "int32"),))
    ),
    "a signature of text": lambda: Dataset.from_generator(lambda: iter([1]), output_signature="int32"),
    "a pattern without files": lambda: Dataset.list_files("/nonexistent/*.x"),
    "a file that is not there": lambda: len(TFRecordDataset(["/nonexistent/x.tfrec"])),
    "an unknown compression": lambda: TFRecordDataset("x", "LZ4"),
    "map without a function": lambda: TEN.map(5),
    "map in no thread": lambda: TEN.map(abs, num_parallel_calls=0),
    "map to nothing": lambda: list(TEN.map(lambda v: None)),
    "map to a data set": lambda: list(TEN.map(lambda v: TEN)),
    "map to an object": lambda: list(TEN.map(lambda v: object())),
    "a predicate that is a number": lambda: list(TEN.filter(lambda v: 1)),
    "a predicate of several": lambda: list(TEN.filter(lambda v: np.array([True, False]))),
    "shuffle of none": lambda: TEN.shuffle(0),
    "shuffle of unknown": lambda: TEN.shuffle(TEN.filter(lambda v: True).cardinality()),
    "a seed of text": lambda: TEN.shuffle(3, "a"),
    "repeat less than never": lambda: TEN.repeat(-2),
    "batches of none": lambda: TEN.batch(0),
    "batches of a fraction": lambda: TEN.batch(2.5),
    "a flag of text": lambda: TEN.batch(2, "no"),
    "batches of several shapes": lambda: list(GROWING.batch(2)),
    "batches of several dtypes": lambda: list(TEN.map(lambda v: v if v < 1 else float(v)).batch(2)),
    "batches of several structures": lambda: list(TEN.map(lambda v: {"a" if v < 1 else "b": v}).batch(2)),
    "batches of windows": lambda: list(TEN.window(2).batch(2)),
    "padding to less": lambda: list(GROWING.padded_batch(3, padded_shapes=[2])),
    "rows of numbers": lambda: list(TEN.unbatch()),
    "take of text": lambda: TEN.take("a"),
    "skip less than all": lambda: TEN.skip(-2),
    "a shard that is not there": lambda: TEN.shard(2, 2),
    "interleave of numbers": lambda: list(TEN.interleave(lambda v: v)),
    "flat_map of lists": lambda: list(TEN.flat_map(lambda v: [1])),
    "concatenate a list": lambda: TEN.concatenate([1]),
    "zip with a list": lambda: Dataset.zip(TEN, [1]),
    "zip of nothing": lambda: Dataset.zip(),
    "a cache in a file": lambda: TEN.cache("/tmp/x"),
    "prefetch less than none": lambda: TEN.prefetch(-2),
    "apply to a number": lambda: TEN.apply(lambda dataset: 5),
    "options that are none": lambda: TEN.with_options(5),
    "an option that is not here": lambda: setattr(Options(), "experimental_slack", True),
    "a policy of text": lambda: setattr(Options().experimental_distribute, "auto_shard_policy", "FILE"),
    "a batch behind the end": lambda: TEN.start_at(epoch=0, batch=11),
    "a shape of text": lambda: TensorSpec("ab"),
    "a dtype that is none": lambda: TensorSpec((), "nope"),
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_in_one_line(name):
    with pytest.raises(LockstepError) as refused:
        BAD[name]()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("threads", [None, 2])
def test_a_function_s_own_error_comes_as_it_is(threads):
    list(grain.MapDataset.range(2).to_iter_dataset())  # from then on Grain has notes to add
    for data in (TEN, TEN.filter(lambda v: True)):
        with pytest.raises(ZeroDivisionError) as raised:
            list(data.map(lambda v: 1 // int(v), num_parallel_calls=threads))
        assert not getattr(raised.value, "__notes__", [])


def test_what_is_changed_in_place_is_nobody_else_s():
    rows = np.arange(4.0)[:, None]

    def add(row):
        row += 1
        return row

    for dataset in (Dataset.from_tensor_slices(rows), Dataset.from_tensor_slices(rows).cache(), Dataset.range(4)):
        changed = dataset.map(add)
        assert [float(np.sum(row)) for row in changed] == [float(np.sum(row)) for row in changed] == [1, 2, 3, 4]
    np.testing.assert_array_equal(rows[:, 0], np.arange(4.0))
