import pytest

from lockstep.errors import InvalidInputError
from lockstep.strategies import GlobalBatches, InputContext, rows_of_batch


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
    assert [rows_of_batch(Rows(), batch) for batch in range(6)] == [8, 8, 5, 8, 8, 5]
