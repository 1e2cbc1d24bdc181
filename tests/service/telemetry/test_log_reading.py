"""Reading a log back: nothing twice, nothing over a gap, and an end even where lines are missing."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.jobs.logs import Severity, encode_entry
from lockstep.jobs.logs.filters import parse_log_filter
from lockstep.jobs.running.orders import (
    GANG_ORDER,
    GangOrder,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.running.states import JobState
from lockstep.service.store import JobRecord, ReplicaRecord
from lockstep.service.telemetry.logs import LOST_AFTER_S, SCAN_ENTRIES, SCAN_S, Cursor, Position, read_log
from lockstep.service.telemetry.segments import SegmentCache
from lockstep.storage.local import LocalBucket


def _folder(tmp_path: Path, *, attempt: int = 0, replica: str = "r") -> Path:
    return tmp_path / "u" / replica / f"attempt-{attempt:03d}"


def _job(tmp_path: Path, *, num_lines: int | None = None) -> JobRecord:
    replica = ReplicaOrder(
        name="r", role="master", index=0, job="j", command=("x",), spool="/s", log_url=str(_folder(tmp_path))
    )
    return JobRecord(
        uid="u",
        project="p",
        job_id="j",
        training_input={},
        labels={},
        state=JobState.RUNNING if num_lines is None else JobState.SUCCEEDED,
        version=1,
        create_time_s=0.0,
        end_time_s=None if num_lines is None else 100.0,
        gang_order=GANG_ORDER.dump_python(GangOrder(gang_id="g", replicas=(replica,)), mode="json"),
        replicas=(ReplicaRecord(status=_status(num_lines), machine_type="n1-standard-4"),),
        outputs={"logs": str(tmp_path)},
    )


def _status(num_lines: int | None) -> ReplicaStatus:
    if num_lines is None:
        return ReplicaStatus(name="r", phase=ReplicaPhase.RUNNING)
    return ReplicaStatus(name="r", phase=ReplicaPhase.ENDED, end=ProgramEnd(exit_code=0, num_log_entries=num_lines))


def _segment(tmp_path: Path, first: int, last: int, *, attempt: int = 0, replica: str = "r") -> None:
    folder = _folder(tmp_path, attempt=attempt, replica=replica)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        encode_entry(seq=n, time_s=float(n), stream="stdout", severity=Severity.DEFAULT, text=str(n))
        for n in range(first, last + 1)
    ]
    (folder / f"{first:012d}.jsonl").write_bytes(b"".join(lines))


def _texts(job: JobRecord, cursor: str = "", *, now_s: float = 100.0, size: int = 100) -> tuple[list[str], str, bool]:
    page = read_log(job, cursor=Cursor.decode(cursor), size=size, now_s=now_s)
    return [entry.stored.text for entry in page.entries], page.cursor, page.complete


def _encoded(document: str) -> str:
    return base64.urlsafe_b64encode(document.encode()).decode()


def test_a_reader_waits_at_a_gap_and_goes_on_when_it_is_filled(tmp_path: Path) -> None:
    job = _job(tmp_path)
    _segment(tmp_path, 0, 1)
    _segment(tmp_path, 4, 5)
    texts, cursor, _ = _texts(job)
    assert texts == ["0", "1"]
    _segment(tmp_path, 2, 3)
    texts, _, _ = _texts(job, cursor)
    assert texts == ["2", "3", "4", "5"]


def test_a_segment_that_was_written_again_with_more_lines_gives_the_new_ones(tmp_path: Path) -> None:
    """A writer that had no answer from the bucket cannot know that its segment is there."""
    job = _job(tmp_path)
    _segment(tmp_path, 0, 1)
    texts, cursor, _ = _texts(job)
    _segment(tmp_path, 0, 3)
    _segment(tmp_path, 4, 4)
    more, cursor, _ = _texts(job, cursor)
    assert (texts, more) == (["0", "1"], ["2", "3", "4"])
    assert _texts(job, cursor)[0] == []


def test_a_poll_lists_nothing_and_reads_two_objects_of_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(tmp_path)
    for first in range(0, 40, 2):
        _segment(tmp_path, first, first + 1)
    asked: list[str] = []
    read = LocalBucket._read

    def note(bucket: LocalBucket, key: str, start_byte: int, end_byte: int | None) -> bytes:
        asked.append(key)
        return read(bucket, key, start_byte, end_byte)

    def refuse(bucket: LocalBucket, prefix: str) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr(LocalBucket, "_read", note)
    monkeypatch.setattr(LocalBucket, "_list", refuse)
    texts, cursor, _ = _texts(job)
    assert len(texts) == 40
    assert len(asked) == 21, "each segment once, and the one that is not there yet"
    asked.clear()
    assert _texts(job, cursor)[0] == []
    assert asked == ["000000000038.jsonl", "000000000040.jsonl"]


def test_fifty_readers_of_a_far_bucket_have_each_segment_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(tmp_path)
    for first in range(0, 40, 10):
        _segment(tmp_path, first, first + 9)
    asked: list[str] = []
    read = LocalBucket._read
    now_s = 0.0

    def note(bucket: LocalBucket, key: str, start_byte: int, end_byte: int | None) -> bytes:
        nonlocal now_s
        asked.append(key)
        now_s += 100.0
        return read(bucket, key, start_byte, end_byte)

    monkeypatch.setattr(LocalBucket, "_read", note)
    segments = SegmentCache(clock=lambda: now_s)
    for _ in range(50):
        page = read_log(job, cursor=Cursor({}), size=100, now_s=100.0, segments=segments)
        assert [entry.stored.seq for entry in page.entries] == list(range(40))
        now_s += 1.0
    assert asked == [f"{first:012d}.jsonl" for first in range(0, 50, 10)]


def test_lines_in_one_segment_are_read_on_in_its_middle(tmp_path: Path) -> None:
    job = _job(tmp_path)
    _segment(tmp_path, 0, 9)
    texts, cursor, _ = _texts(job, size=4)
    position = Cursor.decode(cursor).positions[0]["r"]
    assert (texts, position.segment_seq, position.next_seq) == (["0", "1", "2", "3"], 0, 4)
    with (_folder(tmp_path) / "000000000000.jsonl").open("r+b") as file:
        file.write(b"#" * position.offset_bytes)  # what was read is not looked at again
    assert _texts(job, cursor)[0] == ["4", "5", "6", "7", "8", "9"]


def _again(job: JobRecord, attempt: int) -> JobRecord:
    return JobRecord(**{**vars(job), "attempt": attempt})


def test_attempts_are_read_one_after_another(tmp_path: Path) -> None:
    job = _again(_job(tmp_path), 2)
    for attempt in range(3):
        _segment(tmp_path, 0, 1 + attempt, attempt=attempt)
    for size in range(1, 11):
        seen: list[tuple[int, int]] = []
        cursor, more = "", True
        while more:
            page = read_log(job, cursor=Cursor.decode(cursor), size=size, now_s=100.0)
            seen += [(entry.attempt, entry.stored.seq) for entry in page.entries]
            cursor, more = page.cursor, page.more
        assert seen == [(attempt, seq) for attempt in range(3) for seq in range(2 + attempt)]


def test_a_reader_goes_on_with_the_next_attempt_and_gets_what_came_late_of_the_last(tmp_path: Path) -> None:
    job = _job(tmp_path)
    _segment(tmp_path, 0, 1)
    texts, cursor, _ = _texts(job)
    assert texts == ["0", "1"]
    again = _again(job, 1)
    _segment(tmp_path, 0, 0, attempt=1)
    texts, cursor, _ = _texts(again, cursor)
    assert texts == ["0"]
    _segment(tmp_path, 2, 3)
    _segment(tmp_path, 1, 1, attempt=1)
    texts, cursor, _ = _texts(again, cursor)
    assert texts == ["2", "3", "1"]
    assert _texts(again, cursor)[0] == []


def test_an_attempt_without_a_line_is_passed_over(tmp_path: Path) -> None:
    _segment(tmp_path, 0, 1, attempt=2)
    texts, cursor, _ = _texts(_again(_job(tmp_path), 2))
    assert texts == ["0", "1"]
    assert _texts(_again(_job(tmp_path), 2), cursor)[0] == []


def test_a_cursor_of_a_later_attempt_than_there_is_reads_on(tmp_path: Path) -> None:
    _segment(tmp_path, 0, 1)
    assert _texts(_job(tmp_path), Cursor({}, attempt=7).encode())[0] == ["0", "1"]


def test_replicas_are_merged_by_time(tmp_path: Path) -> None:
    job = _job(tmp_path)
    assert job.gang_order is not None
    replica = job.gang_order["replicas"][0]
    order = {**job.gang_order, "replicas": [replica, {**replica, "name": "s"}]}
    _segment(tmp_path, 0, 2)
    _segment(tmp_path, 0, 2, replica="s")
    page = read_log(JobRecord(**{**vars(job), "gang_order": order}), cursor=Cursor({}), size=100, now_s=100.0)
    assert [entry.stored.seq for entry in page.entries] == [0, 0, 1, 1, 2, 2]
    assert {entry.replica for entry in page.entries} == {"r", "s"}


def test_a_page_that_a_filter_leaves_empty_ends_and_says_that_there_is_more(tmp_path: Path) -> None:
    job = _job(tmp_path, num_lines=SCAN_ENTRIES + 5)
    _segment(tmp_path, 0, SCAN_ENTRIES + 4)
    last = parse_log_filter(f'textPayload="{SCAN_ENTRIES + 4}"')
    still = read_log(job, cursor=Cursor({}), size=10, now_s=100.0, holds=last, clock=lambda: 0.0)
    assert (still.entries, still.more, still.complete) == ((), True, False)
    page = read_log(job, cursor=Cursor.decode(still.cursor), size=10, now_s=100.0, holds=last, clock=lambda: 0.0)
    assert [entry.stored.seq for entry in page.entries] == [SCAN_ENTRIES + 4]
    assert (page.more, page.complete) == (False, True)


def test_a_page_takes_a_bounded_time_and_yet_goes_on(tmp_path: Path) -> None:
    job = _job(tmp_path, num_lines=3)
    _segment(tmp_path, 0, 2)
    cursor, seen, num_pages, more = "", [], 0, True
    while more:
        seconds = iter(range(1000))
        page = read_log(
            job, cursor=Cursor.decode(cursor), size=10, now_s=100.0, clock=lambda it=seconds: next(it) * 2 * SCAN_S
        )
        seen += [entry.stored.seq for entry in page.entries]
        cursor, more, num_pages = page.cursor, page.more, num_pages + 1
    assert (seen, num_pages, page.complete) == ([0, 1, 2], 3, True)


_OTHER = encode_entry(seq=7, time_s=0.0, stream="stdout", severity=Severity.INFO, text="another").decode()


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"seq": 0, "time_s": 0}\n', _OTHER])
def test_what_is_no_log_is_one_line(tmp_path: Path, text: str) -> None:
    _folder(tmp_path).mkdir(parents=True)
    (_folder(tmp_path) / "000000000000.jsonl").write_text(text)
    with pytest.raises(CorruptDataError, match=r"000000000000\.jsonl is not a log with entry 0 at byte 0"):
        _texts(_job(tmp_path))


def test_a_cursor_that_does_not_fit_the_log_is_refused(tmp_path: Path) -> None:
    _segment(tmp_path, 0, 9)
    forged = Cursor({0: {"r": Position(segment_seq=0, offset_bytes=3, next_seq=1)}}).encode()
    with pytest.raises(CorruptDataError, match="entry 1 at byte 3"):
        _texts(_job(tmp_path), forged)


def test_every_page_size_gives_each_line_once(tmp_path: Path) -> None:
    job = _job(tmp_path, num_lines=10)
    _segment(tmp_path, 0, 3)
    _segment(tmp_path, 4, 9)
    for size in range(1, 12):
        seen: list[str] = []
        cursor, complete = "", False
        while not complete:
            texts, cursor, complete = _texts(job, cursor, size=size)
            seen += texts
        assert seen == [str(n) for n in range(10)]


def test_a_finished_log_is_complete_only_with_its_last_line(tmp_path: Path) -> None:
    job = _job(tmp_path, num_lines=4)
    _segment(tmp_path, 0, 1)
    assert _texts(job)[2] is False
    _segment(tmp_path, 2, 3)
    assert _texts(job)[2] is True


def test_lines_that_never_came_are_counted_after_a_while(tmp_path: Path) -> None:
    job = _job(tmp_path, num_lines=4)
    _segment(tmp_path, 0, 1)
    page = read_log(job, cursor=Cursor({}), size=100, now_s=100.0 + LOST_AFTER_S + 1)
    assert page.complete
    assert page.num_missing == 2


def test_what_is_there_still_comes_before_the_rest_is_given_up(tmp_path: Path) -> None:
    job = _job(tmp_path, num_lines=4)
    _segment(tmp_path, 0, 1)
    page = read_log(job, cursor=Cursor({}), size=1, now_s=100.0 + LOST_AFTER_S + 1)
    assert (len(page.entries), page.more, page.complete, page.num_missing) == (1, True, False, 0)


def test_a_job_that_has_no_order_yet_has_an_empty_log(tmp_path: Path) -> None:
    job = JobRecord(**{**vars(_job(tmp_path)), "gang_order": None})
    assert _texts(job) == ([], Cursor({}).encode(), False)


@pytest.mark.parametrize(
    "text",
    [
        *("x", "e30x", "eyJhIjogLTF9", "WzFd", "ü"),
        *(_encoded(document) for document in ("null", "[0, {}]", "[0, {}, []]", "[-1, {}, {}]", "[true, {}, {}]")),
        *(
            _encoded(f'[0, {{}}, {{"r": {numbers}}}]')
            for numbers in ("7", "[0, 0]", "[0, -1, 0]", "[0, 1e99, 0]", '"abc"')
        ),
        _encoded(f'[1, {{"r": [0, {10**30}, 0]}}, {{}}]'),
    ],
)
def test_a_cursor_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="cursor"):
        Cursor.decode(text)
