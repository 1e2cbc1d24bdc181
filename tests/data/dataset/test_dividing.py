"""Processes that divide a data set read each record once, and each step's rows are a global batch."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data import Dataset, Options, TFRecordDataset, frame
from lockstep.errors import InvalidInputError
from lockstep.strategies import AutoShardPolicy, InputContext

AUTO, DATA, FILE, OFF = AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.FILE, AutoShardPolicy.OFF
SIZES = (5, 4, 3, 6, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("parts")
    ends = np.cumsum([0, *SIZES]).tolist()
    for file, (start, end) in enumerate(itertools.pairwise(ends)):
        (found / f"{file}").write_bytes(b"".join(frame(b"%d" % number) for number in range(start, end)))
    return found


def read(dataset, policy, num_workers):
    """What each of several processes reads, and the policy that was decided."""
    contexts = [
        InputContext(num_input_pipelines=num_workers, input_pipeline_id=rank, num_replicas_in_sync=num_workers)
        for rank in range(num_workers)
    ]
    parts = [dataset.divide(policy, input_context=context) for context in contexts]
    return [[batch.tolist() for batch in part] for part, _ in parts], {policy for _, policy in parts}


def pipelines(folder):
    files = [str(folder / str(file)) for file in range(len(SIZES))]
    listed = Dataset.list_files(f"{folder}/*")
    return {
        "records": TFRecordDataset(files),
        "records in turn": TFRecordDataset(files, num_parallel_reads=2).shuffle(4),
        "listed": TFRecordDataset(listed),
        "interleaved": listed.interleave(lambda name: TFRecordDataset(name).shuffle(3), cycle_length=2).cache(),
        "joined": TFRecordDataset(files[:3]).concatenate(TFRecordDataset(files[3:])),
    }


NAMES = ("records", "records in turn", "listed", "interleaved", "joined")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(batch_size=st.integers(1, 8), num_workers=st.integers(2, 4), policy=st.sampled_from([AUTO, FILE, OFF]))
def test_each_record_is_read_once(folder, name, batch_size, num_workers, policy):
    dataset = pipelines(folder)[name].map(lambda record: np.int64(int(record))).batch(batch_size)
    has_files = num_workers <= (2 if name == "joined" else len(SIZES))
    if policy is FILE and not has_files:
        with pytest.raises(InvalidInputError, match="FILE"):
            read(dataset, policy, num_workers)
        return
    found, decided = read(dataset, policy, num_workers)
    times = num_workers if decided in ({OFF}, {DATA}) else 1
    assert decided == {policy if policy is not AUTO else FILE if has_files else DATA}
    rows = sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(found)))
    assert rows == sorted([*range(sum(SIZES))] * times)
    if decided != {DATA}:
        full = min(len(part) for part in found) - num_workers  # before anybody's last batch
        for step in range(max(0, full) if batch_size >= num_workers else 0):
            assert sum(len(part[step]) for part in found) == batch_size


def test_the_options_decide(folder):
    options = Options()
    options.experimental_distribute.auto_shard_policy = OFF
    dataset = pipelines(folder)["records"].batch(4).with_options(options)
    assert dataset.options().experimental_distribute.auto_shard_policy is OFF
    assert read(dataset.prefetch(1), AUTO, 2)[1] == {OFF}
    with pytest.raises(InvalidInputError, match="OFF, distributed with FILE"):
        read(dataset, FILE, 2)
    assert read(Dataset.range(8).batch(2), AUTO, 2)[1] == {DATA}
    with pytest.raises(InvalidInputError, match="FILE divides files"):
        read(Dataset.range(8).batch(2), FILE, 2)
    beside = Dataset.zip((pipelines(folder)["records"], Dataset.range(30)))
    assert read(beside.map(lambda record, number: number).batch(2), AUTO, 2)[1] == {DATA}


@pytest.mark.parametrize("policy", [FILE, OFF])
def test_elements_without_rows_are_refused(folder, policy):
    files = [str(folder / str(file)) for file in range(len(SIZES))]
    context = InputContext(num_input_pipelines=2, input_pipeline_id=0, num_replicas_in_sync=2)
    part, _ = TFRecordDataset(files).divide(policy, input_context=context)
    with pytest.raises(InvalidInputError, match=r"no rows .*; received 'bytes'; call \.batch\(\)"):
        next(iter(part))
