"""Files that are compressed as a whole: read in order, told apart, gone on with exactly, and named where damaged."""

import gzip
import io
import pickle
import re
import tracemalloc
import uuid
import zlib
from itertools import chain, islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data import FixedLenFeature, encode_example, frame, masked_crc32c, parse_batch
from lockstep.data.files import compression as compression_module
from lockstep.data.files.compressed import CompressedRecords
from lockstep.data.files.compression import compression_of, find_compression, read_compressed
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.storage import join_url, open_bucket

PACK: dict[str | None, Any] = {"GZIP": gzip.compress, "ZLIB": zlib.compress, None: bytes}


def crc_of(length: bytes) -> bytes:
    return masked_crc32c(length).to_bytes(4, "little")


RECORDS = [b"first", b"", b"the third record", b"x" * 1000]


@pytest.fixture(params=["local", "memory"])
def url(request: Any, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def write(url: str, name: str, records: list[bytes], *, compression: str | None = "GZIP") -> str:
    open_bucket(url).write(name, PACK[compression](b"".join(map(frame, records))))
    return join_url(url, name)


def write_set(url: str, counts: list[int], *, suffix: str = ".tfrec.gz") -> list[list[bytes]]:
    files = [[f"{index}/{number}".encode() for number in range(count)] for index, count in enumerate(counts)]
    for index, records in enumerate(files):
        write(url, f"s-{index:05d}-of-{len(counts):05d}{suffix}", records)
    return files


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB", None])
def test_a_file_is_read_in_order(url: str, compression: str | None) -> None:
    path = write(url, "x", RECORDS, compression=compression)
    assert find_compression(path) == compression
    assert list(read_compressed(path)) == RECORDS
    assert list(CompressedRecords(path)) == RECORDS
    if compression is not None:
        assert list(read_compressed(path, compression=compression)) == RECORDS  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB", None])
def test_a_file_without_records(url: str, compression: str | None) -> None:
    path = write(url, "x", [], compression=compression)
    assert find_compression(path) == compression
    assert list(read_compressed(path)) == []


def test_streams_behind_each_other_are_one(url: str) -> None:
    whole = b"".join(map(frame, RECORDS))
    open_bucket(url).write("x", gzip.compress(whole[:30]) + gzip.compress(b"") + gzip.compress(whole[30:]))
    assert list(read_compressed(join_url(url, "x"))) == RECORDS


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1), st.binary(max_size=40))
def test_a_plain_file_is_never_taken_for_a_compressed_one(length: int, rest: bytes) -> None:
    """Whatever its first length is, that of a compressed file's marks too: the length's checksum says so."""
    for marks in (b"", b"\x1f\x8b\x08", b"\x78\x9c", b"\x78\x01", b"\x78\xda", b"\x08\x1d"):
        start = marks + length.to_bytes(8, "little")[len(marks) :]
        head = start + crc_of(start) + rest
        assert compression_of(head) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 9))
def test_what_is_compressed_is_told(records: list[bytes], level: int) -> None:
    whole = b"".join(map(frame, records))
    assert compression_of(gzip.compress(whole, level)[: compression_module.HEAD_BYTES]) == "GZIP"
    assert compression_of(zlib.compress(whole, level)[: compression_module.HEAD_BYTES]) == "ZLIB"
    assert compression_of(whole[: compression_module.HEAD_BYTES]) is None


@pytest.mark.parametrize(
    "head", [b"", b"\x78", b"\x78\x9c and no stream", b"\x78\x9d" + bytes(20), zlib.compress(b"no records at all")]
)
def test_what_is_neither_is_left_to_be_named_as_a_damaged_file_of_records(head: bytes) -> None:
    assert compression_of(head) is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(0, 30),
    st.lists(st.integers(0, 30), max_size=2),
)
def test_an_iterators_state_is_enough_to_go_on(
    counts: list[int], cycle_length: int, num_read: int, seeks: list[int]
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    write_set(url, counts)
    dataset = CompressedRecords(join_url(url, "s-*"), cycle_length=cycle_length)
    expected = list(dataset)
    assert expected == in_turn(counts, cycle_length)
    iterator = iter(dataset)
    states = [iterator.get_state()]
    for _ in islice(iterator, num_read):
        states.append(iterator.get_state())
    other = iter(dataset)
    for number in (*(seek % len(states) for seek in seeks), len(states) - 1):
        other.set_state(states[number])
        assert other.get_state() == states[number]
    assert list(other) == expected[len(states) - 1 :]


def in_turn(counts: list[int], cycle_length: int) -> list[bytes]:
    """The order by its definition."""
    waiting = [iter([f"{index}/{number}".encode() for number in range(count)]) for index, count in enumerate(counts)]
    slots, waiting = waiting[:cycle_length], waiting[cycle_length:]
    given_out: list[bytes] = []
    slot = 0
    while slots:
        record = next(slots[slot], None)
        if record is not None:
            given_out.append(record)
            slot = (slot + 1) % len(slots)
        elif waiting:
            slots[slot] = waiting.pop(0)
        else:
            del slots[slot]
            slot = slot % len(slots) if slots else 0
    return given_out


def test_grain_and_parsing_apply(url: str) -> None:
    write(url, "x.gz", [encode_example({"label": number}) for number in range(10)])
    spec = {"label": FixedLenFeature((), np.int64)}
    dataset = CompressedRecords(join_url(url, "*.gz")).batch(4, batch_fn=lambda records: parse_batch(records, spec))
    assert isinstance(dataset, grain.IterDataset)
    iterator = iter(dataset)
    assert next(iterator)["label"].tolist() == [0, 1, 2, 3]
    state = iterator.get_state()
    other = iter(dataset)
    other.set_state(state)
    assert [batch["label"].tolist() for batch in other] == [[4, 5, 6, 7], [8, 9]]


def test_it_may_be_pickled_and_divided_by_files(url: str) -> None:
    files = write_set(url, [2, 3, 1])
    dataset = pickle.loads(pickle.dumps(CompressedRecords(join_url(url, "s-*"))))
    assert list(dataset) == list(chain.from_iterable(files))
    assert (dataset.num_files, len(dataset.urls)) == (3, 3)
    assert list(dataset.take_files([2, 0])) == files[2] + files[0]
    assert list(dataset.take_files([1])) == files[1]
    for rank in range(2):  # as Grain's mp_prefetch does for its workers
        part = pickle.loads(pickle.dumps(dataset))
        part.set_slice(slice(rank, None, 2))
        assert list(part) == list(chain.from_iterable(files[rank::2]))


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression_module, "_READ_BYTES", 1 << 14)
    monkeypatch.setattr(compression_module, "_UNPACKED_BYTES", 1 << 14)
    random = np.random.default_rng(0)
    records = [random.bytes(1000) + bytes(9000) for _ in range(2000)]  # 2 MB, 20 MB unpacked
    (tmp_path / "x").write_bytes(gzip.compress(b"".join(map(frame, records)), 1))
    del records
    tracemalloc.start()
    try:
        assert sum(map(len, read_compressed(str(tmp_path / "x")))) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


BEGINNINGS = [0, 21, 37, 69]
"""Where the records of `RECORDS` begin, unpacked."""


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_file_cut_anywhere_is_named_with_record_and_place(tmp_path: Path, compression: Any) -> None:
    whole = PACK[compression](b"".join(map(frame, RECORDS)))
    path = tmp_path / "x"
    seen: set[int] = set()
    for size in range(3, len(whole)):
        path.write_bytes(whole[:size])
        found: list[bytes] = []
        with pytest.raises(CorruptDataError) as caught:
            found.extend(read_compressed(str(path), compression=compression))
        record = int(re.search(r"record (\d+) at byte", str(caught.value))[1])  # type: ignore[index]
        assert found == RECORDS[:record]
        place = [*BEGINNINGS, 1085][record]
        assert str(caught.value) == (
            f"{path}, unpacked: record {record} at byte {place}: the file is cut off: its {compression} stream does "
            "not end; copy the file again from its source, or pack it again"
        )
        seen.add(record)
    assert {0, 3, 4} <= seen


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_flipped_byte_anywhere_is_noticed(tmp_path: Path, compression: Any) -> None:
    random = np.random.default_rng(0)
    records = [random.bytes(40) for _ in range(5)]
    whole = bytearray(PACK[compression](b"".join(map(frame, records))))
    path = tmp_path / "x"
    header = 10 if compression == "GZIP" else 2
    for place in range(header, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        found: list[bytes] = []
        with pytest.raises(CorruptDataError, match=r"x, unpacked: record \d at byte \d+: "):
            found.extend(read_compressed(str(path), compression=compression))
        assert found == records[: len(found)]


@pytest.mark.parametrize("read_bytes", [1 << 18, 1 << 10])
def test_records_before_the_damage_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    """Though one read gives some of them and the damage at once."""
    monkeypatch.setattr(compression_module, "_READ_BYTES", read_bytes)
    random = np.random.default_rng(0)
    records = [random.bytes(2000) for _ in range(40)]
    stream = zlib.compressobj(0)
    whole = b"".join(stream.compress(frame(record)) + stream.flush(zlib.Z_FULL_FLUSH) for record in records)
    (tmp_path / "x").write_bytes(whole + b"\xff" * 50)  # no block begins so
    reader = read_compressed(str(tmp_path / "x"), compression="ZLIB")
    assert list(islice(reader, 40)) == records
    with pytest.raises(
        CorruptDataError, match=r"record 40 at byte 80640: the file is damaged, or not ZLIB: decompression failed"
    ):
        next(reader)


def test_what_lies_behind_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(zlib.compress(frame(b"a")) + b"more")
    with pytest.raises(CorruptDataError, match="record 1 at byte 17: unexpected data after the end of the ZLIB"):
        list(read_compressed(str(path)))


def test_another_compression_than_stated_is_named(url: str) -> None:
    path = write(url, "x", RECORDS)
    with pytest.raises(CorruptDataError, match="record 0 at byte 0: the file is damaged, or not ZLIB"):
        list(read_compressed(path, compression="ZLIB"))
    plain = write(url, "y", RECORDS, compression=None)
    with pytest.raises(CorruptDataError, match="record 0 at byte 0: the file is damaged, or not GZIP"):
        list(CompressedRecords(plain, compression="GZIP"))


def test_a_length_that_no_message_has_is_refused(tmp_path: Path) -> None:
    length = (1 << 40).to_bytes(8, "little")
    (tmp_path / "x").write_bytes(gzip.compress(length + crc_of(length) + bytes(1000)))
    with pytest.raises(
        CorruptDataError, match="record 0 at byte 0: it states 1099511627776 bytes, more than a message"
    ):
        list(read_compressed(str(tmp_path / "x")))


def test_shards_are_counted_by_their_names(url: str) -> None:
    write(url, "s-00000-of-00002-2.tfrec.gz", [b"a", b"b"])
    with pytest.raises(MissingInputError, match="1 of 2 shards found, missing 00001"):
        CompressedRecords(join_url(url, "s-*"))
    write(url, "s-00001-of-00002-2.tfrec.gz", [b"c"])
    dataset = CompressedRecords(join_url(url, "s-*"))
    with pytest.raises(CorruptDataError, match=r"s-00001-of-00002-2.tfrec.gz: 1 records found, 2 stated in the file's"):
        list(dataset)


def test_a_state_of_other_files_is_refused(url: str) -> None:
    write_set(url, [2, 3])
    dataset = CompressedRecords(join_url(url, "s-*"), cycle_length=2)
    iterator = iter(dataset)
    list(islice(iterator, 3))
    state = iterator.get_state()
    for other in (dataset.take_files([0]), CompressedRecords(join_url(url, "s-*"))):
        with pytest.raises(InvalidInputError, match="the iterator state belongs to other files"):
            iter(other).set_state(state)
    write(url, "s-00000-of-00002.tfrec.gz", [])
    iterator = iter(dataset)
    iterator.set_state(state)
    with pytest.raises(CorruptDataError, match="0 records found, but 2 were already read; the file was replaced"):
        list(iterator)


def test_after_an_error_the_same_record_is_next(url: str) -> None:
    write_set(url, [3, 2])
    whole = open_bucket(url).read("s-00000-of-00002.tfrec.gz")
    iterator = iter(CompressedRecords(join_url(url, "s-*")))
    open_bucket(url).write("s-00000-of-00002.tfrec.gz", whole[:-8])
    assert list(islice(iterator, 3)) == [b"0/0", b"0/1", b"0/2"]
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="record 3 at byte 57: the file is cut off"):
            next(iterator)
    open_bucket(url).write("s-00000-of-00002.tfrec.gz", whole)
    assert list(iterator) == [b"1/0", b"1/1"]
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "BZIP2"}, "a compression of files; received 'BZIP2'; allowed: GZIP, ZLIB, None"),
        ({"cycle_length": 0}, "cycle_length; received 0; allowed: 1 or more"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        CompressedRecords(["x"], **options)


def test_a_file_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(MissingInputError):
        CompressedRecords(join_url(url, "*.gz"))
    with pytest.raises(MissingInputError, match="gone"):
        list(CompressedRecords([join_url(url, "gone")]))


def test_the_stream_is_a_binary_file_like_any_other() -> None:
    raw = compression_module.Unpacking(io.BytesIO(gzip.compress(b"abcdef")), compression="GZIP")
    assert raw.readable()
    assert (raw.read(4), raw.read(4), raw.read(4)) == (b"abcd", b"ef", b"")
