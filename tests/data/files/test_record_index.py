"""Indexes of files: made once, kept beside the file or in the cache, and never believed against the file."""

import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data import FixedLenFeature, RecordSource, frame, pack
from lockstep.data.files import record_file
from lockstep.data.files.record_index import MIN_INDEXED_BYTES, RecordIndex
from lockstep.home import Home
from lockstep.storage import join_url, open_bucket
from lockstep.storage.memory import MemoryBucket

BIG = 700_000
"""Two records of it make a file long enough for an index."""


@pytest.fixture(params=["local", "memory"])
def url(request: Any, tmp_path: Path) -> str:
    return str(tmp_path / "bucket") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    return Home.from_env()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were gone through."""
    seen: list[str] = []
    original = record_file.scan_lengths

    def scan_lengths(file: Any, *, size_bytes: int, url: str) -> Iterator[int]:
        seen.append(url.rsplit("/", 1)[-1])
        return original(file, size_bytes=size_bytes, url=url)

    monkeypatch.setattr(record_file, "scan_lengths", scan_lengths)
    return seen


def write(url: str, *records: bytes, name: str = "x.tfrec") -> None:
    open_bucket(url).write(name, b"".join(map(frame, records)))


def read_all(url: str, **options: Any) -> list[bytes]:
    source = RecordSource(join_url(url, "x.tfrec"), **options)
    return [source[number] for number in range(len(source))]


def keys(url: str) -> list[str]:
    return [item.key for item in open_bucket(url).list()]


@given(st.lists(st.integers(0, 1 << 40), max_size=50))
def test_an_index_comes_back_from_its_bytes(lengths: list[int]) -> None:
    index = RecordIndex(lengths=np.array(lengths, np.int64))
    found = RecordIndex.from_bytes(index.to_bytes(), size_bytes=index.size_bytes)
    assert found is not None
    assert found.lengths.tolist() == lengths


def test_an_index_that_is_damaged_is_none() -> None:
    index = RecordIndex(lengths=np.arange(100))
    whole, size_bytes = index.to_bytes(), index.size_bytes
    assert RecordIndex.from_bytes(whole, size_bytes=size_bytes + 1) is None
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        assert RecordIndex.from_bytes(bytes(damaged), size_bytes=size_bytes) is None, place
        assert RecordIndex.from_bytes(whole[:place], size_bytes=size_bytes) is None


@pytest.mark.parametrize(
    ("packed", "num_records"),
    [
        (b"no zlib at all", 1),
        (zlib.compress(b"12345"), 1),
        (zlib.compress(bytes(8 * 1000)), 1),  # more than it says
        (zlib.compress(np.array([-5, 5], "<i8").tobytes()), 2),
        (zlib.compress(np.array([2**63 - 1, 1 - 2**63], "<i8").tobytes()), 2),
        (zlib.compress(b""), 2**40),
    ],
)
def test_an_index_that_somebody_made_up_is_none(packed: bytes, num_records: int) -> None:
    """Each with a checksum that is right."""
    head = struct.pack("<QQI", 32, num_records, google_crc32c.value(packed))
    assert RecordIndex.from_bytes(b"lockstep index 1\n" + head + packed, size_bytes=32) is None


@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
def test_a_file_is_gone_through_once(url: str, scans: list[str], held_bytes: int) -> None:
    records = [bytes([number]) * BIG for number in range(3)]
    write(url, *records)
    for _ in range(3):
        assert read_all(url, held_bytes=held_bytes) == records
    assert scans == ["x.tfrec"]
    assert keys(url) == ["x.tfrec", "x.tfrec.index"]
    assert len(RecordSource(join_url(url, "x*"))) == 3  # the index is no file of records


def test_a_small_file_has_none(url: str, scans: list[str]) -> None:
    write(url, b"abc")
    assert read_all(url) == read_all(url) == [b"abc"]
    assert scans == ["x.tfrec"] * 2
    assert keys(url) == ["x.tfrec"]


def test_a_bucket_that_cannot_be_written_has_its_index_in_the_cache(
    scans: list[str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    write(url, b"a" * BIG, b"b" * BIG)

    def refuse(self: MemoryBucket, key: str, data: bytes) -> None:
        raise PermissionError(key)

    monkeypatch.setattr(MemoryBucket, "_write", refuse)
    assert read_all(url) == read_all(url) == [b"a" * BIG, b"b" * BIG]
    assert scans == ["x.tfrec"]
    assert keys(url) == ["x.tfrec"]
    assert len(list((home.cache / "records").iterdir())) == 1


def test_without_any_place_for_it_the_file_is_gone_through_each_time(
    scans: list[str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    write(url, b"a" * 2 * BIG)
    home.path.mkdir()
    (home.path / "cache").write_text("a file where the folder should be")

    def refuse(self: MemoryBucket, key: str, data: bytes) -> None:
        raise PermissionError(key)

    monkeypatch.setattr(MemoryBucket, "_write", refuse)
    assert read_all(url) == read_all(url) == [b"a" * 2 * BIG]
    assert scans == ["x.tfrec"] * 2


@pytest.mark.parametrize(
    "others",
    [
        [b"c" * (BIG + 5), b"d" * (BIG - 5)],  # of the same length all together
        [b"c" * BIG],
        [b"c" * BIG] * 3,
        [b"c" * (2 * BIG + 16)],
    ],
)
def test_a_file_that_was_replaced_is_gone_through_anew(url: str, scans: list[str], others: list[bytes]) -> None:
    write(url, b"a" * BIG, b"b" * BIG)
    read_all(url)
    write(url, *others)
    assert read_all(url) == others
    assert scans == ["x.tfrec"] * 2


@pytest.mark.parametrize("contents", [b"", b"nonsense", b"lockstep index 1\n" + bytes(30)])
def test_an_index_that_is_not_usable_is_made_anew(url: str, scans: list[str], contents: bytes) -> None:
    write(url, b"a" * BIG, b"b" * BIG)
    open_bucket(url).write("x.tfrec.index", contents)
    assert read_all(url) == read_all(url) == [b"a" * BIG, b"b" * BIG]
    assert scans == ["x.tfrec"]


def test_packing_writes_the_indexes_and_takes_older_ones_away(url: str, scans: list[str]) -> None:
    feature = FixedLenFeature((300_000,), np.float32)
    example = {"x": np.zeros(300_000, np.float32)}

    def packed(num_examples: int, *, num_shards: int) -> None:
        pack([example] * num_examples, url, name="a", split="b", num_shards=num_shards, features={"x": feature})

    packed(3, num_shards=3)
    assert [key for key in keys(url) if key.endswith(".index")] == [
        f"a-b-0000{index}-of-00003-1.tfrec.index" for index in range(3)
    ]
    assert len(RecordSource(join_url(url, "a-b-*"))) == 3
    assert scans == []
    packed(2, num_shards=1)
    assert keys(url) == ["a-b-00000-of-00001-2.tfrec", "a-b-00000-of-00001-2.tfrec.index", "a-b.manifest.json"]


def test_the_bound_is_one_that_the_tests_know() -> None:
    assert BIG < MIN_INDEXED_BYTES < 2 * BIG
