from collections.abc import Callable
from itertools import chain
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.waiting import wait_until

from lockstep.data import Batches, RecordFiles, RecordRandom, RecordSource, epoch_order, frame
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.strategies import InputContext
from lockstep.strategies.input import AutoShardPolicy, UnevenBatches


def numbers(records: list[int]) -> np.ndarray:
    return np.array(records)


def make(
    records: Any = 10, *, batch_size: int = 3, transform: Callable[..., Any] | None = numbers, **options: Any
) -> Any:
    source = range(records) if isinstance(records, int) else records
    return Batches(source, batch_size=batch_size, transform=transform, **options)


def epoch(batches: Batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


sizes = st.tuples(
    st.integers(1, 60),  # records
    st.integers(1, 20),  # records of a batch
    st.integers(1, 4),  # processes
    st.integers(1, 3),  # replicas of a process
    st.one_of(st.none(), st.integers(0, 2**64)),  # seed
    st.integers(0, 3),  # read ahead
)


@settings(deadline=None)
@given(sizes, st.integers(0, 5))
def test_each_record_is_read_once_an_epoch(size: tuple[Any, ...], first_epoch: int) -> None:
    num_records, batch_size, num_processes, num_local, seed, read_ahead = size
    num_replicas = num_processes * num_local
    of_processes: list[list[list[int]]] = []
    for process_id in range(num_processes):
        batches = make(
            num_records,
            batch_size=batch_size,
            seed=seed,
            input_context=InputContext(
                num_input_pipelines=num_processes, input_pipeline_id=process_id, num_replicas_in_sync=num_replicas
            ),
            read_ahead=read_ahead,
        )
        batches.seek(epoch=first_epoch)
        of_processes.append(epoch(batches))
        assert len(of_processes[-1]) == len(batches)
    order = epoch_order(num_records, seed=seed, epoch=first_epoch).tolist()
    for number, shares in enumerate(zip(*of_processes, strict=True)):
        expected = order[number * batch_size : (number + 1) * batch_size]
        if len(expected) % num_replicas:
            assert all(share == expected for share in shares)
        else:
            assert list(chain.from_iterable(shares)) == expected
            assert len({len(share) for share in shares}) == 1
    assert sorted(order) == list(range(num_records))


def test_orders_differ_by_epoch_and_seed_and_repeat() -> None:
    def orders(seed: int | None) -> list[list[int]]:
        batches = make(50, batch_size=50, seed=seed)
        return [epoch(batches)[0] for _ in range(4)]

    assert orders(1) == orders(1)
    distinct = {tuple(order) for seed in (1, 2) for order in orders(seed)}
    assert len(distinct) == 8
    assert orders(None) == [list(range(50))] * 4


def test_the_order_is_the_same_on_every_machine() -> None:
    # A training run that is resumed elsewhere has to go on in this order.
    assert epoch_order(8, seed=7, epoch=0).tolist() == [1, 0, 4, 2, 3, 5, 7, 6]
    assert epoch_order(8, seed=7, epoch=1).tolist() == [7, 2, 3, 0, 1, 5, 4, 6]


@settings(deadline=None)
@given(sizes, st.integers(0, 3), st.data())
def test_seek_goes_on_as_if_nothing_was(size: tuple[Any, ...], at_epoch: int, data: st.DataObject) -> None:
    num_records, batch_size, _, _, seed, read_ahead = size
    whole = make(num_records, batch_size=batch_size, seed=seed, read_ahead=read_ahead)
    epochs = [epoch(whole) for _ in range(at_epoch + 2)]
    at_batch = data.draw(st.integers(0, len(whole)))
    resumed = make(num_records, batch_size=batch_size, seed=seed, read_ahead=read_ahead)
    resumed.seek(epoch=at_epoch, batch=at_batch)
    if at_batch == len(whole):
        assert resumed.position == (at_epoch + 1, 0)
    else:
        assert resumed.position == (at_epoch, at_batch)
        assert epoch(resumed) == epochs[at_epoch][at_batch:]
    assert epoch(resumed) == epochs[at_epoch + 1]


@pytest.mark.parametrize("read_ahead", [0, 2])
def test_an_iterators_state_is_enough_to_go_on(read_ahead: int) -> None:
    batches = make(20, seed=3, read_ahead=read_ahead)
    batches.seek(epoch=4)
    iterator = iter(batches)
    states, values = [iterator.get_state()], []
    for value in iterator:
        values.append(value.tolist())
        states.append(iterator.get_state())
    for number, state in enumerate(states):
        other = iter(make(20, seed=3, read_ahead=read_ahead))
        if number % 2:
            next(other)  # what was read before the state was set is forgotten
        other.set_state(state)
        assert other.get_state() == state
        assert [value.tolist() for value in other] == values[number:]
        with pytest.raises(StopIteration):
            next(other)


def test_a_look_leaves_the_place() -> None:
    batches = make(seed=1)
    first = epoch(make(seed=1))
    for _ in range(3):
        assert next(iter(batches)).tolist() == first[0]
    assert batches.position == (0, 0)
    assert epoch(batches) == first
    assert batches.position == (1, 0)


def test_an_epoch_is_counted_once() -> None:
    batches = make(seed=1)
    one, other = iter(batches), iter(batches)
    assert [value.tolist() for value in one] == [value.tolist() for value in other]
    assert batches.position == (1, 0)
    stale = iter(batches)
    batches.seek(epoch=1)
    assert len(list(stale)) == len(batches)
    assert batches.position == (1, 0)  # the iterator was sent there before the seek


def test_grains_transformations_apply() -> None:
    batches = make(seed=1)
    mapped = batches.map(lambda batch: batch * 2)
    assert isinstance(mapped, grain.IterDataset)
    expected = [[2 * number for number in batch] for batch in epoch(make(seed=1))]
    assert [batch.tolist() for batch in mapped] == expected
    assert batches.position == (1, 0)


@pytest.mark.parametrize("read_ahead", [0, 1, 5])
def test_no_more_is_read_ahead_than_was_said(read_ahead: int) -> None:
    started: list[int] = []

    def transform(records: list[int]) -> int:
        started.append(records[0])
        return records[0]

    iterator = iter(make(50, batch_size=1, transform=transform, read_ahead=read_ahead))
    for number in range(10):
        assert next(iterator) == number
        wait_until(lambda: len(started) == number + 1 + read_ahead)  # noqa: B023 - called at once
    iterator.close()
    assert sorted(started) == list(range(10 + read_ahead))


@pytest.mark.parametrize("read_ahead", [0, 3])
def test_an_error_comes_where_its_batch_would(read_ahead: int) -> None:
    failing = [True]

    def transform(records: list[int]) -> np.ndarray:
        if 7 in records and failing:
            raise CorruptDataError("record 7 is damaged")
        return np.array(records)

    batches = make(transform=transform, read_ahead=read_ahead)
    iterator = iter(batches)
    assert [next(iterator).tolist(), next(iterator).tolist()] == [[0, 1, 2], [3, 4, 5]]
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="record 7 is damaged") as caught:
            next(iterator)
        assert not hasattr(caught.value, "__notes__"), "the one line stands last"
    assert iterator.get_state() == {"epoch": 0, "batch": 2}
    failing.clear()
    assert [value.tolist() for value in iterator] == [[6, 7, 8], [9]]
    assert batches.position == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size; received 0; allowed: a whole number, 1 or more"),
        ({"records": 0}, "the source of Batches has no records"),
        ({"seed": -1}, "seed; received -1"),
        ({"read_ahead": -1}, "read_ahead; received -1"),
        ({"num_threads": 0}, "num_threads; received 0; allowed: a whole number, 1 or more"),
        ({"num_processes": -1}, "num_processes; received -1"),
        ({"batch_size": 16.0}, "batch_size; received 16.0"),
        ({"batch_size": "16"}, "batch_size; received '16'"),
        ({"on_error": "skip"}, r"on_error; received 'skip'; allowed: \"raise\", Skip\(limit\)"),
        ({"policy": "nope"}, "policy; received 'nope'; allowed: a lockstep.strategies.AutoShardPolicy"),
        ({"records": "out/*.tfrec"}, r"not file names; received 'out/\*.tfrec'; pass RecordSource"),
        ({"transform": {"image": 3}}, "the transform of Batches; received "),
    ],
)
def test_bad_numbers_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make(**options)


@pytest.mark.parametrize(("at_epoch", "at_batch"), [(-1, 0), (0, -1), (0, 5)])
def test_there_is_no_such_place(at_epoch: int, at_batch: int) -> None:
    with pytest.raises(InvalidInputError):
        make().seek(epoch=at_epoch, batch=at_batch)


class NumberFiles:
    """Numbers in files, which know who opened them."""

    def __init__(self, sizes: list[int]) -> None:
        starts = np.cumsum([0, *sizes])
        self.files = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=False)]
        self.opened: list[int] = []

    @property
    def num_files(self) -> int:
        return len(self.files)

    def open_files(self, files: Any) -> list[int]:
        self.opened = list(files)
        return [number for file in files for number in self.files[file]]


def workers(policy: AutoShardPolicy, sizes: list[int], num_workers: int, batch_size: int, **options: Any) -> list[Any]:
    """The same job's batches in each worker, and the files that it opened."""
    made: list[tuple[Batches, NumberFiles]] = []
    counts = [
        sum(sizes[file] for file in range(rank, len(sizes), num_workers))
        if policy is AutoShardPolicy.FILE
        else sum(sizes)
        for rank in range(num_workers)
    ]
    for rank in range(num_workers):
        files = NumberFiles(sizes)
        context = InputContext(
            num_input_pipelines=num_workers, input_pipeline_id=rank, num_replicas_in_sync=num_workers
        )
        batches = Batches(
            files,
            batch_size=batch_size,
            transform=numbers,
            input_context=context,
            policy=policy,
            gather=lambda count: counts,
            **options,
        )
        made.append((batches, files))
    return made


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any),
    st.integers(1, 4),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(0, 9)),
    st.integers(0, 2),
)
def test_workers_with_files_of_their_own_read_each_record_once(
    sizes: list[int], num_workers: int, batch_size: int, seed: int | None, at_epoch: int
) -> None:
    num_workers, batch_size = min(num_workers, len(sizes)), max(batch_size, num_workers)
    found = workers(AutoShardPolicy.FILE, sizes, num_workers, batch_size, seed=seed)
    rows: list[list[list[int]]] = []
    for rank, (batches, files) in enumerate(found):
        assert files.opened == list(range(rank, len(sizes), num_workers)) or num_workers == 1
        batches.seek(epoch=at_epoch)
        rows.append([[] if batch is None else batch.tolist() for batch in batches])
        assert batches.position == (at_epoch + 1, 0)
    assert sorted(chain.from_iterable(chain.from_iterable(rows))) == list(range(sum(sizes)))
    assert len({len(batches) for batches in rows}) == 1  # every worker takes as many steps
    for number, shares in enumerate(zip(*rows, strict=True)):
        if num_workers > 1:
            assert tuple(map(len, shares)) == found[0][0].shares_of_batch(number)
        assert 0 < sum(map(len, shares)) <= batch_size


def test_a_worker_whose_files_are_empty() -> None:
    (first, _), (second, _) = workers(AutoShardPolicy.FILE, [5, 0, 4], 2, 4)
    assert isinstance(first, UnevenBatches)
    assert epoch(first) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert list(second) == [None] * 5
    assert (first.num_batches, first.partial_batch_size, first.has_partial_batch) == (5, 1, True)


def test_a_worker_that_ends_first_goes_on_with_empty_arrays() -> None:
    (first, _), (second, _) = workers(AutoShardPolicy.FILE, [5, 2], 2, 4)
    assert epoch(first) == [[0, 1], [2, 3], [4]]
    assert [(batch.tolist(), batch.dtype.kind) for batch in second] == [([5, 6], "i"), ([], "i"), ([], "i")]


def test_off_reads_everything_in_every_worker_in_orders_of_their_own() -> None:
    found = workers(AutoShardPolicy.OFF, [4, 4], 2, 4, seed=0)
    orders = [list(chain.from_iterable(epoch(batches))) for batches, _ in found]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(8))
    assert orders[0] != orders[1]
    assert found[0][0].shares_of_batch(0) == (2, 2)


def test_auto_takes_files_where_there_are_enough() -> None:
    def policy(sizes: list[int], num_workers: int, batch_size: int = 4) -> AutoShardPolicy:
        return workers(AutoShardPolicy.AUTO, sizes, num_workers, batch_size)[0][0].policy

    assert policy([3, 3], 2) is AutoShardPolicy.FILE
    assert policy([6], 2) is AutoShardPolicy.DATA
    assert policy([3, 3], 2, batch_size=2) is AutoShardPolicy.FILE
    assert policy([3, 3], 2, batch_size=1) is AutoShardPolicy.DATA, "a worker would have no row of it"
    assert make(10, policy=AutoShardPolicy.AUTO).policy is AutoShardPolicy.DATA


def test_files_of_records_are_opened_by_their_worker_alone(tmp_path: Any) -> None:
    for number, size in enumerate([3, 2]):
        path = tmp_path / f"set-{number:05d}-of-00002.tfrec"
        path.write_bytes(b"".join(frame(bytes([number, record])) for record in range(size)))
    url = f"{tmp_path}/set-*.tfrec"
    context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=2)
    expected = [[(1, 0)], [(1, 1)], []]
    for make_source in (RecordFiles, RecordSource):
        source = make_source(url)
        batches = Batches(
            source,
            batch_size=2,
            transform=lambda records: np.array([list(record) for record in records]),
            input_context=context,
            policy=AutoShardPolicy.FILE,
            gather=lambda count: (3, count),
        )
        assert [[tuple(row) for row in batch.tolist()] for batch in batches] == expected
    damaged = tmp_path / "set-00000-of-00002.tfrec"
    damaged.write_bytes(damaged.read_bytes()[:-1])  # the other worker's file
    files = RecordFiles(url)
    assert (files.num_files, len(files.urls)) == (2, 2)
    assert list(files.open_files([1])) == [b"\x01\x00", b"\x01\x01"]
    with pytest.raises(CorruptDataError):
        files.open_files([0])


def test_workers_that_are_not_there_cannot_be_asked() -> None:
    context = InputContext(num_input_pipelines=2, num_replicas_in_sync=2)
    with pytest.raises(InvalidInputError, match="received '1 processes'; allowed: 2, by the input context"):
        make(10, batch_size=4, input_context=context, policy=AutoShardPolicy.OFF)


def test_random_transforms_draw_the_same_for_a_record_wherever_it_comes_up() -> None:
    def transform(records: list[int], random: RecordRandom) -> tuple[np.ndarray, np.ndarray]:
        return np.array(records), random.uniform(3)

    def draws(epoch: int, **options: Any) -> dict[int, list[float]]:
        batches = make(30, transform=None, random_transform=transform, **options)
        batches.seek(epoch=epoch)
        return {int(n): row.tolist() for numbers, rows in batches for n, row in zip(numbers, rows, strict=True)}

    one = draws(1, seed=5, batch_size=4)
    assert draws(1, seed=5, batch_size=7, num_threads=1, read_ahead=0) == one
    assert draws(2, seed=5, batch_size=4)[3] != one[3]
    assert draws(1, seed=6, batch_size=4)[3] != one[3]
    parts: dict[int, list[float]] = {}
    for rank in range(2):
        context = InputContext(num_input_pipelines=2, input_pipeline_id=rank, num_replicas_in_sync=2)
        parts |= draws(1, seed=5, batch_size=4, input_context=context)
    assert parts == one


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ({"transform": None}, "none"),
        ({"random_transform": lambda records, random: records}, "transform and random_transform"),
    ],
)
def test_one_transform_is_given(given: dict[str, Any], received: str) -> None:
    with pytest.raises(
        InvalidInputError, match=f"exactly one transform; received '{received}'; allowed: transform=, or "
    ):
        make(**given)


@pytest.mark.parametrize("read_ahead", [0, 2])
def test_a_transform_cannot_end_an_epoch(read_ahead: int) -> None:
    def transform(records: list[int]) -> int:
        return next(number for number in records if number < 6)

    iterator = iter(make(10, transform=transform, read_ahead=read_ahead))
    assert [next(iterator), next(iterator)] == [0, 3]
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(iterator)


def test_repeated_batches_go_on_with_the_next_epoch() -> None:
    batches, repeated = make(10, seed=1), make(10, seed=1).repeat()
    expected = [epoch(batches) for _ in range(3)]
    iterator = iter(repeated)
    found = [[next(iterator).tolist() for _ in range(4)] for _ in range(3)]
    assert found == expected
    assert repeated.position == (3, 0)
    state = iterator.get_state()
    following = next(iterator).tolist()
    iterator.set_state(state)
    assert next(iterator).tolist() == following
    assert len(repeated) == 4


@pytest.mark.parametrize("num_processes", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_mapped_batches_are_the_same_batches_with_a_function_applied(num_processes: int) -> None:
    batches = make(10, seed=1, num_processes=num_processes)
    mapped = batches.map(np.negative)
    assert epoch(mapped) == [[-number for number in batch] for batch in epoch(make(10, seed=1))]
    assert mapped.position == batches.position == (1, 0), "of both"
    mapped.seek(epoch=2, batch=3)
    assert batches.position == (2, 3)
    assert (len(mapped), mapped.order_key) == (len(batches), batches.order_key)
    assert np.concatenate([*batches]).min() >= 0, "this one is not mapped"


def test_batches_are_repeated_so_many_times_as_kerashub_asks_for() -> None:
    plain = make(10, seed=1)
    expected = [*epoch(plain), *epoch(plain)]
    repeated = make(10, seed=1).map(lambda batch: batch).repeat(2).to_iter_dataset(grain.ReadOptions())
    assert epoch(repeated) == expected
    assert repeated.position == (2, 0)
    with pytest.raises(InvalidInputError, match="num_epochs; received 0"):
        repeated.repeat(0)
