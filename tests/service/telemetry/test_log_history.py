"""Reading a log from its end and around an entry: each entry once, in order, and few objects of a long log."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import CorruptDataError, InvalidInputError, NotFoundError
from lockstep.jobs.logs import LogEntry, Severity, encode_entry
from lockstep.jobs.logs.filters import parse_log_filter
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder, ReplicaOrder
from lockstep.jobs.running.states import JobState
from lockstep.service.store import JobRecord
from lockstep.service.telemetry.log_history import (
    FRESH_S,
    MAX_REPLICAS,
    Bounds,
    LogHistory,
    SegmentListings,
    choose_replicas,
)
from lockstep.service.telemetry.logs import SCAN_ENTRIES, Cursor, read_log
from lockstep.service.telemetry.segments import SegmentCache
from lockstep.storage.local import LocalBucket


class Log:
    """The log of a job in a folder. The entry n of replica number r has the time n + r / 1000."""

    def __init__(self, folder: Path, *, num_replicas: int = 1, num_attempts: int = 1) -> None:
        self.folder = folder
        self.names = [f"worker-replica-{number}" for number in range(num_replicas)]
        orders = tuple(
            ReplicaOrder(name=name, role="worker", index=0, job="j", command=("x",), spool="/s", log_url="/l")
            for name in self.names
        )
        self.job = JobRecord(
            uid="u",
            project="p",
            job_id="j",
            training_input={},
            labels={},
            state=JobState.RUNNING,
            version=1,
            create_time_s=0.0,
            attempt=num_attempts - 1,
            gang_order=GANG_ORDER.dump_python(GangOrder(gang_id="g", replicas=orders), mode="json"),
            outputs={"logs": str(folder)},
        )
        self.now_s = 0.0
        self.listings = SegmentListings(clock=lambda: self.now_s)
        self.segments = SegmentCache()

    def write(self, first: int, last: int, *, replica: int = 0, attempt: int = 0, severity: str = "DEFAULT") -> None:
        folder = self.folder / "u" / self.names[replica] / f"attempt-{attempt:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            encode_entry(
                seq=number,
                time_s=number + replica / 1000,
                stream="stdout",
                severity=Severity[severity],
                text=f"{attempt}/{number}/{replica}",
            )
            for number in range(first, last + 1)
        ]
        (folder / f"{first:012d}.jsonl").write_bytes(b"".join(lines))

    def history(self, *replicas: str, **options: Any) -> LogHistory:
        names = choose_replicas(self.job, asked=replicas)
        return LogHistory(job=self.job, replicas=names, segments=self.segments, listings=self.listings, **options)

    def backward(self, bounds: Bounds | None, *, size: int, holds: Any = lambda _: True) -> list[list[str]]:
        """Returns the texts of all pages, the last page first."""
        pages: list[list[str]] = []
        while bounds is not None:
            page = self.history().before(Bounds.decode(bounds.encode()), size=size, holds=holds)
            pages.append(_texts(page.entries))
            bounds = page.bounds
        return pages

    def forward(self, cursor: Cursor, *, size: int = 1000) -> list[str]:
        page = read_log(self.job, cursor=Cursor.decode(cursor.encode()), size=size, now_s=0.0)
        return _texts(page.entries)


def _texts(entries: tuple[LogEntry, ...]) -> list[str]:
    return [entry.stored.text for entry in entries]


def _all(log: Log) -> list[str]:
    return log.forward(Cursor({}))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three replicas and two attempts, in segments of different lengths."""
    made = Log(tmp_path, num_replicas=3, num_attempts=2)
    for first, last in ((0, 0), (1, 3), (4, 9)):
        made.write(first, last)
    for first, last in ((0, 4), (5, 6)):
        made.write(first, last, replica=1)
    for first, last in ((0, 1), (2, 7)):
        made.write(first, last, attempt=1)
    made.write(0, 2, replica=2, attempt=1)
    return made


def test_pages_from_the_end_have_each_entry_once_and_in_order(log: Log) -> None:
    everything = _all(log)
    assert len(everything) == 10 + 7 + 8 + 3
    for size in (1, 2, 3, 5, 8, 27, 28, 29):
        bounds, cursor = log.history().end()
        pages = log.backward(bounds, size=size)
        assert [text for page in reversed(pages) for text in page] == everything, size
        assert all(len(page) <= size for page in pages)
        assert log.forward(cursor) == []


def test_what_comes_after_the_end_was_read_is_read_forwards_and_nothing_twice(log: Log) -> None:
    before = _all(log)
    bounds, cursor = log.history().end()
    log.write(8, 9, attempt=1)
    log.write(3, 3, replica=2, attempt=1)
    log.write(0, 1, replica=1, attempt=1)  # it had printed nothing yet
    log.write(10, 10)  # late, of the attempt before
    assert sorted(log.forward(cursor)) == ["0/10/0", "1/0/1", "1/1/1", "1/3/2", "1/8/0", "1/9/0"]
    (page,) = log.backward(bounds, size=1000)
    new = ["1/0/1", "1/1/1"]  # where nothing was there, there was no place to remember
    assert [text for text in page if text not in new] == before


def test_around_any_entry_everything_before_it_and_everything_from_it_on_is_found(log: Log) -> None:
    everything = _all(log)
    for number, text in enumerate(everything):
        attempt, seq, replica = text.split("/")
        insert_id = f"{int(attempt):03d}.worker-replica-{replica}.{int(seq):012d}"
        bounds, cursor = log.history().around(insert_id)
        pages = log.backward(bounds, size=4)
        assert [each for page in reversed(pages) for each in page] == everything[:number], text
        assert log.forward(cursor) == everything[number:], text


def test_a_filter_leaves_out_what_does_not_match_on_the_way_back(log: Log) -> None:
    bounds, _ = log.history().end()
    pages = log.backward(bounds, size=2, holds=parse_log_filter("resource.labels.task_name:replica-2"))
    assert [text for page in reversed(pages) for text in page] == ["1/0/2", "1/1/2", "1/2/2"]


def test_a_page_looks_at_a_bounded_number_of_entries_and_for_a_bounded_time(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(0, SCAN_ENTRIES + 4)
    bounds, _ = log.history().end()
    first = parse_log_filter('textPayload="0/0/0"')
    page = log.history(clock=lambda: 0.0).before(bounds, size=10, holds=first)
    assert page.entries == ()
    assert page.bounds is not None
    assert page.bounds.seqs == {"worker-replica-0": 5}
    page = log.history(clock=lambda: 0.0).before(page.bounds, size=10, holds=first)
    assert (_texts(page.entries), page.bounds) == (["0/0/0"], None)
    seconds = iter(range(1000))
    slow = log.history(clock=lambda: float(next(seconds))).before(bounds, size=10, holds=first)
    assert slow.bounds is not None
    assert slow.bounds.seqs == {"worker-replica-0": SCAN_ENTRIES + 4}


def test_the_end_of_a_long_log_needs_one_listing_and_few_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)
    for first in range(0, 4000, 4):
        log.write(first, first + 3)
    listed: list[str] = []
    read: list[str] = []
    list_, read_ = LocalBucket._list, LocalBucket._read

    def note_list(bucket: LocalBucket, prefix: str, *, follows_links: bool) -> Any:
        listed.append(prefix)
        return list_(bucket, prefix, follows_links=follows_links)

    def note_read(bucket: LocalBucket, key: str, start_byte: int, end_byte: int | None) -> bytes:
        read.append(key)
        return read_(bucket, key, start_byte, end_byte)

    monkeypatch.setattr(LocalBucket, "_list", note_list)
    monkeypatch.setattr(LocalBucket, "_read", note_read)
    bounds, _ = log.history().end()
    page = log.history().before(bounds, size=20, holds=lambda _: True)
    assert _texts(page.entries) == [f"0/{number}/0" for number in range(3980, 4000)]
    assert (len(listed), len(set(read))) == (1, 6)
    read.clear()
    log.now_s = 2 * FRESH_S
    assert page.bounds is not None
    log.history().before(page.bounds, size=20, holds=lambda _: True)
    log.history().around("000.worker-replica-0.000000002001")
    assert len(listed) == 1, "what is there already is not listed again"
    assert len(set(read)) <= 8
    log.write(4000, 4000)
    assert log.history().end()[0].seqs == {"worker-replica-0": 4001}
    assert len(listed) == 2


def test_a_job_with_many_replicas_is_read_a_few_at_a_time(tmp_path: Path) -> None:
    log = Log(tmp_path, num_replicas=1000)
    log.write(0, 2, replica=7)
    assert choose_replicas(log.job, asked=()) == log.names[:MAX_REPLICAS]
    assert choose_replicas(log.job, asked=(), at="000.worker-replica-77.000000000001") == ["worker-replica-77"]
    bounds = Bounds(attempt=0, seqs={"worker-replica-500": 3, "nobody": 1})
    assert choose_replicas(log.job, asked=(), bounds=bounds) == ["worker-replica-500"]
    bounds, _ = log.history("worker-replica-7").end()
    page = log.history("worker-replica-7").before(bounds, size=2, holds=lambda _: True)
    assert _texts(page.entries) == ["0/1/7", "0/2/7"]
    with pytest.raises(InvalidInputError, match="received 'nobody'"):
        log.history("nobody").end()


@pytest.mark.parametrize("insert_id", ["000.worker-replica-0.000000000099", "007.worker-replica-0.000000000000"])
def test_an_entry_that_is_not_there_is_said(log: Log, insert_id: str) -> None:
    with pytest.raises(NotFoundError, match="has no log entry"):
        log.history().around(insert_id)
    with pytest.raises(NotFoundError, match="has no log entry"):
        log.history().around(insert_id.replace("worker-replica-0", "nobody"))


@pytest.mark.parametrize("text", ["", "7", "end", "000.r", "0.r.000000000001", "000.../../x.000000000001"])
def test_what_is_no_id_is_refused(log: Log, text: str) -> None:
    with pytest.raises(InvalidInputError, match="insertId"):
        log.history().around(text)


@pytest.mark.parametrize("document", ["x", "7", "[]", "[0, []]", "[-1, {}]", '[0, {"a": true}]', '[0, {"a": 1e99}]'])
def test_bounds_of_somebody_else_are_refused(document: str) -> None:
    with pytest.raises(InvalidInputError, match="before was not issued"):
        Bounds.decode(base64.urlsafe_b64encode(document.encode()).decode())


def test_a_job_that_has_no_log_yet_has_an_empty_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    bounds, cursor = log.history().end()
    assert log.backward(bounds, size=5) == [[]]
    assert log.forward(cursor) == []
    waiting = JobRecord(**{**vars(log.job), "gang_order": None})
    assert choose_replicas(waiting, asked=("worker-replica-0",)) == []
    empty = LogHistory(job=waiting, replicas=(), segments=log.segments, listings=log.listings)
    assert empty.end()[0].seqs == {}


def test_what_is_no_log_is_one_line(log: Log) -> None:
    folder = log.folder / "u" / log.names[0] / "attempt-001"
    (folder / f"{8:012d}.jsonl").write_text("no json\n")
    (folder / "beside").write_text("not a segment")
    with pytest.raises(CorruptDataError, match="is not a log with entry 8"):
        log.history().end()


def test_listings_are_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.service.telemetry import log_history

    monkeypatch.setattr(log_history, "MAX_LISTED", 3)
    log = Log(tmp_path, num_replicas=2)
    for replica in (0, 1):
        for first in (0, 1):
            log.write(first, first, replica=replica)
    log.history().end()
    assert [len(firsts) for _, firsts in log.listings._listed.values()] == [2]
