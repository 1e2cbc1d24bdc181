import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.strategies import GlobalBatches, InputContext, rows_of_batch
from lockstep.strategies.input import AutoShardPolicy, Shares, UnevenBatches, decide_policy


class Rows:
    """Knows its place as `lockstep.data.Batches` does, without any data."""

    num_batches = 3
    batch_size = 8
    partial_batch_size = 5

    def seek(self, *, epoch, batch):
        raise AssertionError("nobody iterates")


@pytest.mark.parametrize("num_replicas", [2, 4, 6])
@pytest.mark.parametrize("num_rows", [12, 24, 48])
def test_a_batch_that_divides_is_shared_out_in_the_order_of_the_processes(num_replicas, num_rows):
    shares = [
        InputContext(num_input_pipelines=2, input_pipeline_id=rank, num_replicas_in_sync=num_replicas)
        for rank in range(2)
    ]
    read = [row for context in shares for row in context.rows_to_read(num_rows)]
    assert read == list(range(num_rows))


def test_a_batch_that_does_not_divide_is_read_whole():
    context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert context.rows_to_read(6) == range(6)


def test_the_batch_size_of_a_replica():
    context = InputContext(num_input_pipelines=2, num_replicas_in_sync=4)
    assert context.get_per_replica_batch_size(64) == 16
    with pytest.raises(InvalidInputError, match="a multiple of 4"):
        context.get_per_replica_batch_size(30)
    with pytest.raises(InvalidInputError, match="1 or more"):
        context.rows_to_read(0)


@pytest.mark.parametrize(
    "numbers",
    [
        {"num_input_pipelines": 0},
        {"num_input_pipelines": 2, "input_pipeline_id": 2, "num_replicas_in_sync": 2},
        {"num_input_pipelines": 2, "num_replicas_in_sync": 3},
        {"num_replicas_in_sync": 0},
    ],
)
def test_contradicting_numbers_are_refused(numbers):
    with pytest.raises(InvalidInputError, match="the input context's"):
        InputContext(**numbers)


def test_rows_of_each_batch_of_an_epoch():
    assert isinstance(Rows(), GlobalBatches)
    assert not isinstance(Rows(), UnevenBatches)
    assert [rows_of_batch(Rows(), batch) for batch in range(6)] == [8, 8, 5, 8, 8, 5]


def contexts(num_workers):
    return [
        InputContext(num_input_pipelines=num_workers, input_pipeline_id=rank, num_replicas_in_sync=num_workers)
        for rank in range(num_workers)
    ]


@given(st.integers(0, 50), st.integers(1, 8))
def test_each_file_has_one_worker(num_files, num_workers):
    shares = [context.files_to_read(num_files) for context in contexts(num_workers)]
    assert sorted(file for share in shares for file in share) == list(range(num_files))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 20), st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
def test_workers_that_read_their_own_records_read_each_once(batch_size, num_records):
    if batch_size < len(num_records):
        with pytest.raises(InvalidInputError, match="smaller than the number of workers"):
            Shares(batch_size=batch_size, num_records=tuple(num_records))
        return
    shares = Shares(batch_size=batch_size, num_records=tuple(num_records))
    batches = [shares.of_batch(batch) for batch in range(shares.num_batches)]
    assert [sum(column) for column in zip(*batches, strict=True)] == num_records
    assert all(any(batch) for batch in batches)
    assert not any(shares.of_batch(shares.num_batches))
    assert all(sum(batch) <= batch_size for batch in batches)
    whole = min(count // shares.rows_of_process(rank) for rank, count in enumerate(num_records))
    assert all(sum(batch) == batch_size for batch in batches[:whole])


def test_a_worker_without_records_has_empty_shares():
    shares = Shares(batch_size=5, num_records=(7, 0))
    assert [shares.of_batch(batch) for batch in range(shares.num_batches)] == [(3, 0), (3, 0), (1, 0)]
    with pytest.raises(InvalidInputError, match="no worker has a record"):
        Shares(batch_size=5, num_records=(0, 0))


def test_what_a_policy_comes_to():
    def decide(policy, num_files, batch_size=None):
        return decide_policy(AutoShardPolicy[policy], num_files=num_files, num_workers=3, batch_size=batch_size).name

    assert [decide("AUTO", files) for files in (None, 2, 3, 8)] == ["DATA", "DATA", "FILE", "FILE"]
    assert [decide("AUTO", 3, batch_size) for batch_size in (2, 3)] == ["DATA", "FILE"]
    assert [decide(policy, 2) for policy in ("DATA", "OFF")] == ["DATA", "OFF"]
    assert decide("FILE", 3) == "FILE"
    with pytest.raises(InvalidInputError, match=r"2 files for 3 workers.*pack the data into 3 shards or more"):
        decide("FILE", 2)
    with pytest.raises(InvalidInputError, match="this data has none that are known"):
        decide("FILE", None)


def test_the_numbers_of_tf_data():
    assert {policy.name: int(policy) for policy in AutoShardPolicy} == {"OFF": -1, "AUTO": 0, "FILE": 1, "DATA": 2}
