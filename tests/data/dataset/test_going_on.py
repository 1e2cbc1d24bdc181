"""Every iteration can go on: from its state, or at a batch of an epoch, it gives what one that never stopped gives."""

import gzip
import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data import Dataset, FixedLenFeature, TFRecordDataset, frame, pack, parse_single_example

FEATURES = {"n": FixedLenFeature((), np.int64)}

STEPS = {
    "map": lambda d: d.map(_plus),
    "map in threads": lambda d: d.map(_plus, num_parallel_calls=2),
    "filter": lambda d: d.filter(lambda v: np.sum(v) % 3 != 0),
    "shuffle": lambda d: d.shuffle(4),
    "shuffle all, seeded": lambda d: d.shuffle(100, seed=7),
    "shuffle once": lambda d: d.shuffle(5, reshuffle_each_iteration=False),
    "repeat": lambda d: d.repeat(2),
    "batch and unbatch": lambda d: d.batch(3).unbatch(),
    "batch without a rest": lambda d: d.batch(3, drop_remainder=True).unbatch(),
    "padded_batch": lambda d: d.padded_batch(2).unbatch(),
    "take": lambda d: d.take(11),
    "skip": lambda d: d.skip(2),
    "shard": lambda d: d.shard(2, 1),
    "interleave": lambda d: d.interleave(lambda v: Dataset.from_tensors(v).repeat(3), cycle_length=3, block_length=2),
    "interleave of shuffled": lambda d: d.take(5).interleave(lambda v: Dataset.range(4).shuffle(4), cycle_length=2),
    "flat_map": lambda d: d.flat_map(lambda v: Dataset.range(np.sum(v) % 4)),
    "concatenate": lambda d: d.concatenate(Dataset.range(3)),
    "concatenate filtered": lambda d: d.concatenate(Dataset.range(7).filter(lambda v: v > 2)),
    "zip": lambda d: Dataset.zip((d, Dataset.range(9))).map(lambda a, b: a + b),
    "zip filtered": lambda d: Dataset.zip((d, Dataset.range(9).filter(lambda v: v > 1))).map(lambda a, b: a * b),
    "cache": lambda d: d.cache(),
    "prefetch": lambda d: d.prefetch(2),
    "enumerate": lambda d: d.enumerate().map(lambda i, v: i + v),
    "window": lambda d: d.window(3, shift=2).flat_map(lambda w: w),
    "window with gaps": lambda d: d.window(2, shift=3, stride=2).flat_map(lambda w: w),
}
"""By name, each of a data set of whole numbers; it gives another one."""

SOURCES = {
    "range": lambda: Dataset.range(10),
    "slices": lambda: Dataset.from_tensor_slices(np.arange(9)),
    "generator": lambda: Dataset.from_generator(lambda: iter(range(8))).map(np.int64),
    "filtered": lambda: Dataset.range(12).filter(lambda v: v % 4 != 1),
}


def _plus(value):
    return value + 1


def _rest(iterator):
    return [np.asarray(element).tolist() for element in iterator]


def check(make, *, epoch, stop):
    """Compares an iteration that never stopped with three that go on: in place, in a new data set, by number."""
    unbroken = make()
    for _ in range(epoch):
        list(unbroken)
    expected = _rest(unbroken)
    stop = min(stop, len(expected))

    broken = make()
    broken.start_at(epoch=epoch)
    iterator = iter(broken)
    begun = [np.asarray(next(iterator)).tolist() for _ in range(stop)]
    state = json.loads(json.dumps(iterator.get_state()))
    assert begun + _rest(iterator) == expected
    iterator.set_state(state)
    assert _rest(iterator) == expected[stop:]

    other = iter(make())
    other.set_state(state)
    assert _rest(other) == expected[stop:]

    sought = make()
    sought.start_at(epoch=epoch, batch=stop)
    following = make()
    following.start_at(epoch=epoch + 1)
    if stop < len(expected):
        assert _rest(sought) == expected[stop:]
    assert _rest(sought) == _rest(following)  # the end of one is the beginning of the next


# Each step goes on from two of the sources in `make test`.
CELLS = [
    pytest.param(step, source, marks=() if (row + column) % 2 == 0 else pytest.mark.heavy)
    for row, step in enumerate(STEPS)
    for column, source in enumerate(SOURCES)
]


@pytest.mark.parametrize(("step", "source"), CELLS)
def test_each_step_goes_on(source, step):
    for stop in (0, 1, 4, 99):
        check(lambda: STEPS[step](SOURCES[source]()), epoch=1, stop=stop)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SOURCES)),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    st.integers(0, 2),
    st.integers(0, 30),
)
@pytest.mark.heavy
def test_chains_go_on(source, steps, epoch, stop):
    def make():
        dataset = SOURCES[source]()
        for step in steps:
            dataset = STEPS[step](dataset)
        return dataset.take(60)

    check(make, epoch=epoch, stop=stop)


@pytest.mark.parametrize("apart", ["batch and unbatch", "batch without a rest", "padded_batch"])
@pytest.mark.parametrize("behind", ["window", "window with gaps"])
def test_what_has_seen_the_end_of_the_data_stays_there(apart, behind):
    for source in SOURCES:
        check(lambda source=source: STEPS[behind](STEPS[apart](SOURCES[source]())), epoch=0, stop=99)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_records_go_on(tmp_path, compression):
    for name in "abc":
        content = b"".join(frame(f"{name}{number}".encode()) for number in range(5))
        (tmp_path / name).write_bytes(content if compression is None else gzip.compress(content))
    urls = [str(tmp_path / name) for name in "abc"]

    def make():
        return TFRecordDataset(urls, compression, num_parallel_reads=2).shuffle(4).map(lambda record: int(record[1:]))

    for stop in (0, 3, 14):
        check(make, epoch=1, stop=stop)


def test_one_shard_by_its_name_is_that_file_alone(tmp_path):
    pack([{"n": n} for n in range(9)], str(tmp_path), name="few", split="train", num_shards=3, features=FEATURES)
    names = Dataset.list_files(f"{tmp_path}/*.tfrec", shuffle=False)
    records = names.interleave(TFRecordDataset, cycle_length=2)
    numbers = [int(parse_single_example(record, FEATURES)["n"]) for record in records]
    assert sorted(numbers) == list(range(9))
    assert len(TFRecordDataset(f"{tmp_path}/few-train")) == len(TFRecordDataset(f"{tmp_path}/*.tfrec")) == 9


def test_endless_data_go_on_far_behind():
    def make():
        return Dataset.range(1000).shuffle(1000).repeat().batch(32)

    far = make()
    far.start_at(epoch=0, batch=100_000)
    unbroken = iter(make())
    state = unbroken.get_state() | {"within": {"next_index": 100_000}}
    unbroken.set_state(state)
    np.testing.assert_array_equal(next(iter(far)), next(unbroken))


def test_an_iteration_counts_when_its_first_element_is_asked_for():
    dataset = Dataset.range(20).shuffle(20)
    unused = iter(dataset)
    first, second = _rest(dataset), _rest(dataset)
    assert first != second
    assert first == _rest(Dataset.range(20).shuffle(20))
    assert _rest(unused) not in (first, second)


def test_an_order_is_a_function_of_its_seed():
    def order(seed=None, *, times=1):
        dataset = Dataset.range(20)
        for _ in range(times):
            dataset = dataset.shuffle(20, seed)
        return _rest(dataset)

    keras.utils.set_random_seed(1)
    first, seeded, twice = order(), order(5), order(times=2)
    keras.utils.set_random_seed(2)
    assert order() != first
    assert order(5) == seeded
    keras.utils.set_random_seed(1)
    assert (order(), order(times=2)) == (first, twice)
    assert len({str(each) for each in (first, seeded, twice, order(6))}) == 4


def test_data_sets_of_one_seed_stay_side_by_side():
    left, right = (Dataset.range(20).shuffle(20, seed=3) for _ in range(2))
    for _ in range(2):
        assert all(a == b for a, b in Dataset.zip((left, right)).repeat(2))
