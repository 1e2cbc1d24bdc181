"""Under every policy each record of an epoch is read once, whatever the files, the workers and the batches are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from lockstep.data import Batches, RecordFiles, frame
from lockstep.errors import InvalidInputError
from lockstep.strategies import InputContext
from lockstep.strategies.input import AutoShardPolicy, Shares

AUTO, DATA, FILE = AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.FILE


class NumberFiles:
    """Records in files, each of them its number in the data set; it knows which files were opened."""

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum(sizes).tolist()
        self.files = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
        self.opened: list[int] | None = None

    @property
    def num_files(self) -> int:
        return len(self.files)

    def open_files(self, files: Sequence[int]) -> list[int]:
        self.opened = list(files)
        return [number for file in self.opened for number in self.files[file]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job reads, and with how many workers."""

    sizes: list[int]
    num_workers: int
    batch_size: int
    policy: AutoShardPolicy
    num_replicas: int = 1
    seed: int | None = None
    epoch: int = 0
    read_ahead: int = 0

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def expected_policy(self) -> AutoShardPolicy:
        if self.policy is not AUTO:
            return self.policy
        return FILE if min(len(self.sizes), self.batch_size) >= self.num_workers else DATA

    @property
    def shares_files(self) -> bool:
        return self.expected_policy is FILE and self.num_workers > 1

    @property
    def is_possible(self) -> bool:
        if self.total == 0 or (self.expected_policy is FILE and len(self.sizes) < self.num_workers):
            return False
        return not self.shares_files or self.batch_size >= self.num_workers


class _AskedError(Exception):
    """What a worker that tells the others its count is interrupted by, for the count."""


@dataclass
class Worker:
    """What one worker read in an epoch."""

    batches: Batches
    files: Any
    rows: list[list[int]] = field(default_factory=list)


def make(job: Job, rank: int, *, source: Any, gather: Any) -> Batches:
    context = InputContext(
        num_input_pipelines=job.num_workers,
        input_pipeline_id=rank,
        num_replicas_in_sync=job.num_workers * job.num_replicas,
    )
    return Batches(
        source,
        batch_size=job.batch_size,
        transform=to_numbers,
        seed=job.seed,
        input_context=context,
        read_ahead=job.read_ahead,
        policy=job.policy,
        gather=gather,
    )


def to_numbers(records: Sequence[Any]) -> np.ndarray:
    return np.array([int(record) for record in records])


def run(job: Job, make_source: Any = None) -> list[Worker]:
    """Runs an epoch in every worker: all tell each other how many records they have, as in a job, and read."""
    make_source = make_source or (lambda: NumberFiles(job.sizes))

    def ask(count: int) -> Sequence[int]:
        raise _AskedError(count)

    counts: list[int] = []
    for rank in range(job.num_workers):
        try:
            make(job, rank, source=make_source(), gather=ask)
        except _AskedError as asked:
            counts.append(asked.args[0])
    assert len(counts) in (0, job.num_workers), "some workers wait for others who never tell their counts"
    workers: list[Worker] = []
    for rank in range(job.num_workers):
        files = make_source()
        worker = Worker(make(job, rank, source=files, gather=lambda _: counts), files)
        worker.batches.seek(epoch=job.epoch)
        worker.rows = [[] if batch is None else batch.tolist() for batch in worker.batches]
        assert worker.batches.position == (job.epoch + 1, 0)
        workers.append(worker)
    return workers


def check(job: Job, workers: list[Worker]) -> None:
    assert {worker.batches.policy for worker in workers} == {job.expected_policy}
    assert len({len(worker.rows) for worker in workers}) == 1, "workers take different numbers of steps"
    assert all(len(worker.rows) == len(worker.batches) for worker in workers)
    if job.shares_files:
        check_files(job, workers)
    else:
        check_records(job, workers)


def check_files(job: Job, workers: list[Worker]) -> None:
    opened = [worker.files.opened for worker in workers]
    assert sorted(chain.from_iterable(opened)) == list(range(len(job.sizes))), "a file is opened twice, or by nobody"
    read = [list(chain.from_iterable(worker.rows)) for worker in workers]
    for files, rows in zip(opened, read, strict=True):
        assert sorted(rows) == sorted(NumberFiles(job.sizes).open_files(files)), "a worker reads others' records"
    assert sorted(chain.from_iterable(read)) == list(range(job.total)), "a record is read twice, or missed"
    quotas = [len(part) for part in np.array_split(range(job.batch_size), job.num_workers)]
    left = [len(rows) for rows in read]
    for number, shares in enumerate(zip(*(worker.rows for worker in workers), strict=True)):
        promised = [min(quota, count) for quota, count in zip(quotas, left, strict=True)]
        assert [len(share) for share in shares] == promised
        assert 0 < sum(promised) <= job.batch_size
        assert all(worker.batches.shares_of_batch(number) == tuple(promised) for worker in workers)
        left = [count - size for count, size in zip(left, promised, strict=True)]


def check_records(job: Job, workers: list[Worker]) -> None:
    """A batch that does not divide over the replicas is read whole by every worker, and is one batch."""
    num_replicas = job.num_workers * job.num_replicas
    global_batches: list[list[int]] = []
    for shares in zip(*(worker.rows for worker in workers), strict=True):
        if len(shares[0]) % num_replicas and all(share == shares[0] for share in shares):
            global_batches.append(shares[0])
        else:
            global_batches.append(list(chain.from_iterable(shares)))
            assert len({len(share) for share in shares}) == 1
            assert len(global_batches[-1]) % num_replicas == 0
    assert sorted(chain.from_iterable(global_batches)) == list(range(job.total)), "a record is read twice, or missed"
    full, rest = divmod(job.total, job.batch_size)
    assert [len(batch) for batch in global_batches] == [job.batch_size] * full + [rest] * bool(rest)
    alone = Job(**{**vars(job), "num_workers": 1, "num_replicas": 1, "policy": DATA})
    assert global_batches == run(alone)[0].rows, "the batches are other ones than one worker's"


JOBS = st.builds(
    Job,
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    num_workers=st.integers(1, 5),
    batch_size=st.integers(1, 12),
    policy=st.sampled_from([AUTO, DATA, FILE]),
    num_replicas=st.integers(1, 3),
    seed=st.one_of(st.none(), st.integers(0, 2**32)),
    epoch=st.integers(0, 3),
    read_ahead=st.sampled_from([0, 0, 0, 2]),
)


@settings(max_examples=300, deadline=None)
@given(JOBS)
def test_each_record_of_an_epoch_is_read_once(job: Job) -> None:
    event(f"{job.policy.name} as {job.expected_policy.name}{'' if job.is_possible else ', refused'}")
    if job.is_possible:
        check(job, run(job))
    else:
        with pytest.raises(InvalidInputError):
            run(job)


@pytest.mark.parametrize(
    "job",
    [
        Job(sizes=[5, 3, 4, 2], num_workers=2, batch_size=4, policy=AUTO, seed=1),
        Job(sizes=[5, 3], num_workers=3, batch_size=3, policy=AUTO, seed=2),
        Job(sizes=[5, 0, 4], num_workers=3, batch_size=4, policy=FILE, epoch=2),
        Job(sizes=[7, 6], num_workers=2, batch_size=5, policy=DATA, num_replicas=2, seed=3),
    ],
    ids=lambda job: f"{job.policy.name}-{job.num_workers}",
)
def test_of_packed_files_too(job: Job, tmp_path: Path) -> None:
    files = NumberFiles(job.sizes).files
    for index, numbers in enumerate(files):
        path = tmp_path / f"s-{index:05d}-of-{len(files):05d}-{len(numbers)}.tfrec"
        path.write_bytes(b"".join(frame(str(number).encode()) for number in numbers))
    opened: list[OpenedFiles] = []

    def make_source() -> OpenedFiles:
        opened.append(OpenedFiles(RecordFiles(f"{tmp_path}/s-*.tfrec")))
        return opened[-1]

    check(job, run(job, make_source))
    assert all(source.opened is not None for source in opened)


class OpenedFiles:
    """Packed files, of which it is known which were opened."""

    def __init__(self, files: RecordFiles) -> None:
        self._files = files
        self.opened: list[int] | None = None

    @property
    def num_files(self) -> int:
        return self._files.num_files

    def open_files(self, files: Sequence[int]) -> Any:
        self.opened = list(files)
        return self._files.open_files(files)


def test_auto_takes_records_where_there_are_no_files() -> None:
    batches = make(
        Job(sizes=[8], num_workers=1, batch_size=4, policy=AUTO), 0, source=range(8), gather=lambda count: [count]
    )
    assert batches.policy is DATA
    with pytest.raises(InvalidInputError, match="the policy FILE divides files, and this data has none"):
        make(Job(sizes=[8], num_workers=2, batch_size=4, policy=FILE), 0, source=range(8), gather=list)


BROKEN: dict[str, tuple[type, str, Any]] = {
    "files that begin one later": (
        InputContext,
        "files_to_read",
        lambda self, num_files: range(self.input_pipeline_id + 1, num_files, self.num_input_pipelines),
    ),
    "files in runs, the last ones missed": (
        InputContext,
        "files_to_read",
        lambda self, num_files: range(
            self.input_pipeline_id * (num_files // self.num_input_pipelines),
            (self.input_pipeline_id + 1) * (num_files // self.num_input_pipelines),
        ),
    ),
    "all files": (InputContext, "files_to_read", lambda self, num_files: range(num_files)),
    "rows of the first worker": (
        InputContext,
        "rows_to_read",
        lambda self, num_rows: (
            range(num_rows) if num_rows % self.num_replicas_in_sync else range(num_rows // self.num_input_pipelines)
        ),
    ),
    "rows of every second one that overlap": (
        InputContext,
        "rows_to_read",
        lambda self, num_rows: range(
            self.input_pipeline_id * (num_rows // self.num_input_pipelines),
            min(num_rows, (self.input_pipeline_id + 1) * (num_rows // self.num_input_pipelines) + 1),
        ),
    ),
    "shares rounded down": (
        Shares,
        "rows_of_process",
        lambda self, process: self.batch_size // len(self.num_records),
    ),
    "an epoch that ends with the first worker": (
        Shares,
        "num_batches",
        property(lambda self: max(1, min(-(-n // self.rows_of_process(i)) for i, n in enumerate(self.num_records)))),
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_an_assignment_that_is_broken_is_seen(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the property looks at tells right from wrong: at least one of these jobs shows it."""
    owner, name, replacement = BROKEN[broken]
    monkeypatch.setattr(owner, name, replacement)
    jobs = [
        Job(sizes=[5, 3, 4], num_workers=2, batch_size=5, policy=FILE),
        Job(sizes=[8, 5], num_workers=2, batch_size=4, policy=DATA),
    ]
    seen = []
    for job in jobs:
        try:
            check(job, run(job))
        except (AssertionError, InvalidInputError):
            seen.append(job)
    assert seen
