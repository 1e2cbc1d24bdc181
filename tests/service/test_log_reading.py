"""Reading a log back: nothing twice, nothing over a gap, and an end even where lines are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.errors import InvalidInputError
from lockstep.jobs import JobState
from lockstep.jobs.orders import GANG_ORDER, GangOrder, ReplicaOrder
from lockstep.service.logs import LOST_AFTER_S, Cursor, read_log
from lockstep.service.store import JobRecord


def _job(tmp_path: Path, *, num_lines: int | None = None) -> JobRecord:
    replica = ReplicaOrder(
        name="r", role="master", index=0, job="j", command=("x",), spool="/s", log_url=str(tmp_path / "log")
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
        replicas=[{"name": "r", "numLogLines": num_lines}],
    )


def _segment(tmp_path: Path, first: int, last: int) -> None:
    folder = tmp_path / "log"
    folder.mkdir(exist_ok=True)
    lines = [{"seq": n, "time_s": float(n), "stream": "stdout", "text": str(n)} for n in range(first, last + 1)]
    (folder / f"{first:012d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _texts(job: JobRecord, cursor: str = "", *, now_s: float = 100.0, size: int = 100) -> tuple[list[str], str, bool]:
    page = read_log(job, cursor=Cursor.decode(cursor), size=size, now_s=now_s)
    return [entry["text"] for entry in page.entries], page.cursor, page.complete


def test_a_reader_waits_at_a_gap_and_goes_on_when_it_is_filled(tmp_path: Path) -> None:
    job = _job(tmp_path)
    _segment(tmp_path, 0, 1)
    _segment(tmp_path, 4, 5)
    texts, cursor, _ = _texts(job)
    assert texts == ["0", "1"]
    _segment(tmp_path, 2, 3)
    texts, _, _ = _texts(job, cursor)
    assert texts == ["2", "3", "4", "5"]


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


def test_a_job_that_has_no_order_yet_has_an_empty_log(tmp_path: Path) -> None:
    job = JobRecord(**{**vars(_job(tmp_path)), "gang_order": None})
    assert _texts(job) == ([], Cursor({}).encode(), False)


@pytest.mark.parametrize("text", ["x", "e30x", "eyJhIjogLTF9", "WzFd", "ü"])
def test_a_cursor_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="cursor"):
        Cursor.decode(text)
