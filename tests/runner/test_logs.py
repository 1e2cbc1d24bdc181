"""A replica's log: lines out of bytes, and segments that reach the bucket whatever the bucket does meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.logs import LineClass, Severity
from lockstep.runner import logs
from lockstep.runner.logs import (
    ENTRY_BYTES,
    LINE_BYTES,
    SEGMENT_BYTES,
    LineSplitter,
    LogWriter,
    next_seq,
    segment_key,
    upload_leftovers,
)
from lockstep.storage import open_bucket


def _split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [text for chunk in chunks for text in splitter.feed(chunk)] + splitter.finish()


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes]) -> None:
    assert _split(*chunks) == _split(b"".join(chunks))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"10%\r50%\r100%\n", ["100%"]),
        (b"dos\r\n", ["dos"]),
        (b"\xff\n", ["�"]),
    ],
)
def test_lines(data: bytes, lines: list[str]) -> None:
    assert _split(data) == lines


def test_a_line_without_end_is_cut_and_not_kept_in_memory() -> None:
    lines = _split(b"x" * (3 * LINE_BYTES + 5))
    assert [len(line) for line in lines] == [LINE_BYTES] * 3 + [5]


def _stored(url: str) -> list[dict[str, object]]:
    bucket = open_bucket(url)
    return [json.loads(line) for item in bucket.list() for line in bucket.read(item.key).splitlines()]


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_lines_reach_the_bucket_while_the_program_runs(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "log"), spool=tmp_path / "spool")
    writer.add("stdout", "first")
    _wait_for(lambda: [line["text"] for line in _stored(str(tmp_path / "log"))] == ["first"])
    writer.add("stderr", "second")
    assert writer.close(timeout_s=10)
    assert [(line["seq"], line["stream"], line["text"]) for line in _stored(str(tmp_path / "log"))] == [
        (0, "stdout", "first"),
        (1, "stderr", "second"),
    ]
    assert [item.key for item in open_bucket(str(tmp_path / "log")).list()] == [segment_key(0), segment_key(1)]


def test_a_line_after_a_pause_goes_at_once_and_those_that_follow_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FLUSH_INTERVAL_S", 60.0)
    writer = LogWriter(str(tmp_path / "log"), spool=tmp_path / "spool")
    writer.add("stdout", "first")
    _wait_for(lambda: [line["text"] for line in _stored(str(tmp_path / "log"))] == ["first"])
    for number in range(20):
        writer.add("stdout", str(number))
    assert writer.close(timeout_s=30)
    assert [item.key for item in open_bucket(str(tmp_path / "log")).list()] == [segment_key(0), segment_key(1)]


_BEGINS = LineClass(severity=Severity.ERROR, open=True)
_CONTINUES = LineClass(severity=Severity.ERROR, continues=True, open=True)


def test_lines_that_belong_together_are_one_entry(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "log"), spool=tmp_path / "spool")
    writer.add("stderr", "Traceback", line_class=_BEGINS)
    writer.add("stdout", "between")
    writer.add("stderr", "  frame", line_class=_CONTINUES)
    writer.add("stderr", "after")
    assert writer.close(timeout_s=10)
    assert writer.num_entries == 3
    assert [(line["seq"], line["severity"], line["text"]) for line in _stored(str(tmp_path / "log"))] == [
        (0, "ERROR", "Traceback\n  frame"),
        (1, "DEFAULT", "between"),
        (2, "DEFAULT", "after"),
    ]


def test_an_entry_that_never_ends_is_in_the_bucket_soon_and_the_rest_is_another(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "log"), spool=tmp_path / "spool")
    start = time.monotonic()
    writer.add("stderr", "Traceback", line_class=_BEGINS)
    _wait_for(lambda: bool(_stored(str(tmp_path / "log"))))
    assert time.monotonic() - start < 2, "the bound of the README"
    writer.add("stderr", "  frame", line_class=_CONTINUES)
    assert writer.close(timeout_s=10)
    assert [(line["seq"], line["severity"], line["text"]) for line in _stored(str(tmp_path / "log"))] == [
        (0, "ERROR", "Traceback"),
        (1, "ERROR", "  frame"),
    ]


def test_a_segment_ends_before_an_entry_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often segments are cut, a traceback that is printed within `HOLD_S` is whole."""
    monkeypatch.setattr(logs, "FLUSH_INTERVAL_S", 0.001)
    monkeypatch.setattr(logs, "HOLD_S", 60.0)
    writer = LogWriter(str(tmp_path / "log"), spool=tmp_path / "spool")
    writer.add("stdout", "before")
    writer.add("stderr", "Traceback", line_class=_BEGINS)
    _wait_for(lambda: bool(_stored(str(tmp_path / "log"))))
    writer.add("stderr", "  frame", line_class=_CONTINUES)
    assert writer.close(timeout_s=10)
    assert [line["text"] for line in _stored(str(tmp_path / "log"))] == ["before", "Traceback\n  frame"]


def test_an_entry_has_a_bound(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "log"), spool=tmp_path / "spool")
    writer.add("stderr", "Traceback", line_class=_BEGINS)
    for _ in range(3):
        writer.add("stderr", "x" * (ENTRY_BYTES // 2), line_class=_CONTINUES)
    assert writer.close(timeout_s=10)
    stored = _stored(str(tmp_path / "log"))
    assert max(len(str(line["text"])) for line in stored) < ENTRY_BYTES
    assert sum(len(str(line["text"]).replace("\n", "")) for line in stored) == 9 + 3 * (ENTRY_BYTES // 2)
    assert {line["severity"] for line in stored} == {"ERROR"}


class _TalkingBucket:
    """A bucket during each of whose writes a program prints another line, until it is told to be quiet."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: list[str] = []
        self.writer: LogWriter | None = None
        self.written = threading.Event()

    def write(self, key: str, data: bytes) -> None:
        del data
        self.keys.append(key)
        if self.writer is not None:
            self.writer.add("stdout", "meanwhile")
        self.written.set()


def test_what_is_printed_while_a_segment_is_written_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a program that never pauses would make a segment of each line."""
    bucket = _TalkingBucket(str(tmp_path / "log"))
    monkeypatch.setattr(logs, "open_bucket", lambda _url, *, policy: bucket)
    monkeypatch.setattr(logs, "FLUSH_INTERVAL_S", 60.0)
    writer = bucket.writer = LogWriter(bucket.url, spool=tmp_path / "spool")
    writer.add("stdout", "x" * SEGMENT_BYTES)
    assert bucket.written.wait(30)
    bucket.writer = None
    assert writer.close(timeout_s=30)
    assert bucket.keys == [segment_key(0), segment_key(1)]


def test_a_bucket_that_refuses_for_a_while_loses_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the bucket's folder should be")
    writer = LogWriter(str(blocked / "log"), spool=tmp_path / "spool")
    for number in range(100):
        writer.add("stdout", str(number))
    _wait_for(lambda: any((tmp_path / "spool").glob("*.jsonl")))
    blocked.unlink()
    writer.add("stdout", "100")
    assert writer.close(timeout_s=30)
    assert [line["text"] for line in _stored(str(blocked / "log"))] == [str(number) for number in range(101)]
    assert not list((tmp_path / "spool").glob("*.jsonl"))


def test_what_the_bucket_never_took_stays_on_the_node(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    writer = LogWriter(str(blocked / "log"), spool=tmp_path / "spool")
    writer.add("stdout", "kept")
    assert not writer.close(timeout_s=1)
    (segment,) = (tmp_path / "spool").glob("*.jsonl")
    assert json.loads(segment.read_text())["text"] == "kept"
    blocked.unlink()
    assert upload_leftovers(tmp_path / "spool") == 1
    assert upload_leftovers(tmp_path / "spool") == 0
    assert [line["text"] for line in _stored(str(blocked / "log"))] == ["kept"]


def test_with_neither_bucket_nor_disk_the_program_is_held_and_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BUFFER_BYTES", 10_000)
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    writer = LogWriter(str(blocked / "log"), spool=blocked / "spool")
    for number in range(1000):
        writer.add("stdout", str(number))
    assert writer.full
    blocked.unlink()
    _wait_for(lambda: not writer.full)
    assert writer.close(timeout_s=30)
    assert [line["text"] for line in _stored(str(blocked / "log"))] == [str(number) for number in range(1000)]


class _HangingBucket:
    """A bucket whose writes do not return until they are let go."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.let_go = threading.Event()

    def write(self, key: str, data: bytes) -> None:
        del key, data
        self.let_go.wait(60)


def test_lines_outlive_a_bucket_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = _HangingBucket(str(tmp_path / "log"))
    monkeypatch.setattr(logs, "open_bucket", lambda _url, *, policy: bucket)
    writer = LogWriter(bucket.url, spool=tmp_path / "spool")
    for number in range(50):
        writer.add("stdout", str(number))
    assert not writer.close(timeout_s=1)
    bucket.let_go.set()
    monkeypatch.undo()
    assert upload_leftovers(tmp_path / "spool") == 1
    assert [line["text"] for line in _stored(bucket.url)] == [str(number) for number in range(50)]


def test_a_log_goes_on_after_its_writer(tmp_path: Path) -> None:
    url, spool = str(tmp_path / "log"), tmp_path / "spool"
    assert next_seq(url, spool=spool) == 0
    first = LogWriter(url, spool=spool)
    for number in range(12):
        first.add("stdout", f"first {number}")
    assert first.close(timeout_s=10)
    assert next_seq(url, spool=spool) == 12
    second = LogWriter(url, spool=spool, first_seq=12)
    second.add("stdout", "second")
    assert second.close(timeout_s=10)
    assert [line["seq"] for line in _stored(url)] == list(range(13))
    assert second.num_entries == next_seq(url, spool=spool) == 13


def test_what_waits_on_the_node_comes_before_what_follows(tmp_path: Path) -> None:
    blocked, spool = tmp_path / "blocked", tmp_path / "spool"
    blocked.write_text("")
    url = str(blocked / "log")
    first = LogWriter(url, spool=spool)
    first.add("stdout", "kept")
    assert not first.close(timeout_s=1)
    blocked.unlink()
    assert next_seq(url, spool=spool) == 1
    second = LogWriter(url, spool=spool, first_seq=1)
    second.add("stdout", "after")
    assert second.close(timeout_s=10)
    assert [(line["seq"], line["text"]) for line in _stored(url)] == [(0, "kept"), (1, "after")]


def test_what_is_carried_while_the_next_number_is_looked_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, spool = str(tmp_path / "log"), tmp_path / "spool"
    spool.mkdir()
    (spool / "url").write_text(url)
    (spool / segment_key(0)).write_text("{}\n{}\n")
    bucket = open_bucket(url)
    listing = type(bucket).list

    def list_then_upload(*args: Any, **kwargs: Any) -> Any:
        found = list(listing(*args, **kwargs))
        upload_leftovers(spool)
        return found

    monkeypatch.setattr(type(bucket), "list", list_then_upload)
    assert next_seq(url, spool=spool) == 2
    assert next_seq(url, spool=spool) == 2, "all of it is in the bucket now"
