"""Segments are read once for all who want them, and nothing of them is kept for longer than it is true."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockstep.errors import MissingInputError, StorageError
from lockstep.service.telemetry.segments import OVERHEAD_BYTES, SegmentCache
from lockstep.storage import RetryPolicy
from lockstep.storage.local import LocalBucket

KEY = "000000000000.jsonl"
ANSWER_S = 2.0


@dataclass
class FarBucket:
    """A folder whose every answer takes `ANSWER_S` of the test's clock."""

    bucket: LocalBucket
    now_s: float = 0.0
    reads: list[tuple[str, int]] = field(default_factory=list)
    fails: bool = False

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarBucket:
    far = FarBucket(LocalBucket(str(tmp_path), policy=RetryPolicy(deadline_s=0)))
    read = LocalBucket._read

    def read_late(bucket: LocalBucket, key: str, start_byte: int, end_byte: int | None) -> bytes:
        far.reads.append((key, start_byte))
        time.sleep(0.02)  # in which the others come
        far.now_s += ANSWER_S
        if far.fails:
            raise OSError("it does not answer")
        return read(bucket, key, start_byte, end_byte)

    monkeypatch.setattr(LocalBucket, "_read", read_late)
    return far


def test_those_who_come_together_have_it_read_once(far: FarBucket) -> None:
    far.bucket.write(KEY, b"one\n")
    cache = SegmentCache(clock=far.clock)
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: cache.read(far.bucket, KEY, 0), range(20))) == {b"one\n"}
        with pytest.raises(MissingInputError):
            cache.read(far.bucket, "000000000001.jsonl", 0)
        missing = list(pool.map(lambda _: _is_missing(cache, far.bucket, "000000000001.jsonl"), range(20)))
    assert all(missing)
    assert far.reads == [(KEY, 0), ("000000000001.jsonl", 0)]


def _is_missing(cache: SegmentCache, bucket: LocalBucket, key: str) -> bool:
    try:
        cache.read(bucket, key, 0)
    except MissingInputError:
        return True
    return False


def test_what_was_read_stays_and_whether_there_is_more_is_asked_again(far: FarBucket) -> None:
    far.bucket.write(KEY, b"one\n")
    cache = SegmentCache(clock=far.clock)
    assert cache.read(far.bucket, KEY, 0) == b"one\n"
    far.bucket.write(KEY, b"one\ntwo\n")
    assert cache.read(far.bucket, KEY, 4) == b"", "the answer is fresh"
    far.now_s += ANSWER_S
    assert cache.read(far.bucket, KEY, 1) == b"ne\n", "that much is known for good"
    assert far.reads == [(KEY, 0)]
    assert cache.read(far.bucket, KEY, 4) == b"two\n"
    assert cache.read(far.bucket, KEY, 0) == b"one\ntwo\n"
    assert far.reads == [(KEY, 0), (KEY, 4)], "no byte is read twice"


def test_what_was_missing_is_there_once_it_is(far: FarBucket) -> None:
    cache = SegmentCache(clock=far.clock)
    assert _is_missing(cache, far.bucket, KEY)
    far.bucket.write(KEY, b"one\n")
    far.now_s += ANSWER_S
    assert cache.read(far.bucket, KEY, 0) == b"one\n"


def test_a_failure_is_everybodys_for_as_long_as_it_took_and_takes_nothing_away(far: FarBucket) -> None:
    far.bucket.write(KEY, b"one\n")
    cache = SegmentCache(clock=far.clock)
    cache.read(far.bucket, KEY, 0)
    far.now_s += ANSWER_S
    far.fails = True
    for _ in range(3):
        with pytest.raises(StorageError, match="it does not answer"):
            cache.read(far.bucket, KEY, 4)
    assert len(far.reads) == 2
    assert cache.read(far.bucket, KEY, 0) == b"one\n"
    far.fails = False
    far.now_s += ANSWER_S
    assert cache.read(far.bucket, KEY, 4) == b""


def test_no_more_is_kept_than_it_may(far: FarBucket) -> None:
    keys = [f"{number:012d}.jsonl" for number in range(5)]
    for key in keys:
        far.bucket.write(key, b"x" * 1000)
    cache = SegmentCache(clock=far.clock, max_bytes=3 * (1000 + OVERHEAD_BYTES))
    for key in [*keys[:3], keys[0], *keys[3:]]:
        cache.read(far.bucket, key, 0)
        assert cache.num_bytes <= 3 * (1000 + OVERHEAD_BYTES)
    far.reads.clear()
    for key in (keys[0], keys[3], keys[4], keys[1]):
        cache.read(far.bucket, key, 0)
    assert far.reads == [(keys[1], 0)], "what was not read for the longest time went"
