import gzip
import json
import threading
import uuid
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockstep
from lockstep.data import Manifest, RawFeature, Shard, ShardName, encode_example, frame, verification
from lockstep.data.verification import MAX_NAMED, Report, verify
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError, StorageError
from lockstep.storage import join_url, open_bucket

FEATURES = {"image": RawFeature((40,), np.uint8)}
CREATED = datetime(2030, 1, 2, tzinfo=UTC)


@pytest.fixture(params=["local", "memory"])
def url(request: Any, tmp_path: Path) -> str:
    return str(tmp_path / "bucket") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def packed(url: str, *, count: int = 30, num_shards: int = 3) -> list[str]:
    """Writes the files of a data set and their manifest; returns the files' names."""
    shards: list[Shard] = []
    for index in range(num_shards):
        numbers = range(count * index // num_shards, count * (index + 1) // num_shards)
        data = b"".join(frame(encode_example({"image": bytes([number] * 40)})) for number in numbers)
        name = ShardName(data_set="set-train", index=index, num_shards=num_shards, num_records=len(numbers))
        open_bucket(url).write(str(name), data)
        shards.append(Shard(file=str(name), num_records=len(numbers), size_bytes=len(data), crc32c=crc_of(data)))
    manifest = Manifest(
        name="set", split="train", shards=tuple(shards), features=FEATURES, source="a test", created=CREATED
    )
    open_bucket(url).write(manifest.key, manifest.to_json().encode())
    return [shard.file for shard in shards]


def crc_of(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def change(url: str, key: str, position: int, *, by: int = 1) -> None:
    data = bytearray(open_bucket(url).read(key))
    data[position] ^= by
    open_bucket(url).write(key, bytes(data))


def lines(report: Report) -> list[str]:
    return [str(damage.error) for damage in report.damages]


def test_what_is_sound_has_no_damage(url: str) -> None:
    files = packed(url)
    report = verify(url)
    assert report.damages == ()
    assert [file.url for file in report.files] == [join_url(url, file) for file in files]
    assert (report.num_records, report.num_damaged, report.num_with_manifest) == (30, 0, 3)
    assert report.size_bytes == sum(open_bucket(url).size_bytes(file) for file in files)
    report.raise_damage()
    assert verify(join_url(url, "set-train-*")).num_records == 30
    one = verify(join_url(url, files[1]))
    assert (one.num_records, len(one.files), one.num_with_manifest) == (10, 1, 1)
    assert lockstep.data.verify is verify


def test_every_damaged_record_is_named_and_it_goes_on(url: str) -> None:
    files = packed(url)
    size_bytes = open_bucket(url).size_bytes(files[0]) // 10
    change(url, files[0], size_bytes * 3 + 20)  # data
    change(url, files[0], size_bytes * 7 - 1)  # the checksum of the data
    change(url, files[2], size_bytes * 5 + 9)  # the checksum of the length
    report = verify(url)
    found = [(damage.url, damage.record, damage.offset) for damage in report.damages]
    assert found == [
        (join_url(url, files[0]), 3, size_bytes * 3),
        (join_url(url, files[0]), 6, size_bytes * 6),
        (join_url(url, files[2]), 5, size_bytes * 5),
    ]
    assert lines(report)[1].startswith(
        f"{url}/{files[0]}: record 6 at byte {size_bytes * 6}: the checksum of its data does not match; copy the file"
    )
    assert "the checksum of its length does not match; the rest of the file is skipped" in lines(report)[2]
    assert [(file.num_records, file.num_damaged) for file in report.files] == [(10, 2), (10, 0), (6, 1)]
    with pytest.raises(CorruptDataError, match="2 files are damaged or missing, 3 were checked; 3 records are damaged"):
        report.raise_damage()


def test_a_file_that_is_cut_off_is_named(url: str) -> None:
    (file,) = packed(url, num_shards=1, count=10)
    data = open_bucket(url).read(file)
    for num_bytes, record in ((len(data) - 1, 9), (len(data) // 10 * 4 + 5, 4), (3, 0)):
        open_bucket(url).write(file, data[:num_bytes])
        (damage,) = verify(url).damages
        assert (damage.record, damage.offset) == (record, record * (len(data) // 10))
        assert "the file ends within this record" in str(damage.error)
        behind = f"; {9 - record} more of 10 stated records should follow; copy" if record < 9 else "record; copy"
        assert behind in str(damage.error)
        assert verify(url).num_stated == 10
    open_bucket(url).write("no-shard.tfrecord", data[:-1])
    (damage,) = verify(join_url(url, "no-shard.tfrecord")).damages
    assert "the file ends within this record; copy" in str(damage.error)


def test_the_manifest_is_compared(url: str) -> None:
    first, second, third = packed(url)
    bucket = open_bucket(url)
    data = bucket.read(first)
    half = len(data) // 2
    bucket.write(first, data[half:] + data[:half])  # another order: as many records, as many bytes
    bucket.write(second, bucket.read(second)[: half * 2 // 10 * 9])  # whole records, one fewer
    bucket.delete(third)
    bucket.write("set-train-00003-of-00004-1.tfrec", frame(b"1"))
    report = verify(url)
    again = "; copy the file again from its source, or pack it again"
    beside = (
        "set-train: set-train-00003-of-00004-1.tfrec belongs to another packing run: set-train.manifest.json lists "
        "3 other shards; delete the outdated files: readers reject a mix of both"
    )
    received = f"received 'CRC-32C: {crc_of(bucket.read(first))}'; allowed: {crc_of(data)}"
    assert [line.removeprefix(f"{url}/") for line in lines(report)] == [
        beside,
        f"{first}: the file differs from what the manifest states; {received}{again}",
        f"{second}: the file differs from what its name states; received 'records: 9'; allowed: 10{again}",
        f"{third}: the manifest lists it, but it does not exist",
    ]
    with pytest.raises(CorruptDataError, match="4 files are damaged or missing, 3 were checked"):
        report.raise_damage()


def test_a_manifest_that_cannot_be_read_is_named_and_the_files_are_checked(url: str) -> None:
    files = packed(url)
    open_bucket(url).write("set-train.manifest.json", b"{")
    change(url, files[1], 30)
    report = verify(url)
    assert len(report.damages) == 2
    assert "not a manifest" in lines(report)[1]
    assert report.num_records == 30


def test_missing_shards_are_named_where_there_is_no_manifest(url: str) -> None:
    files = packed(url)
    open_bucket(url).delete("set-train.manifest.json")
    assert verify(url).damages == ()
    open_bucket(url).delete(files[1])
    for target in (url, join_url(url, "*.tfrec")):
        report = verify(target)
        (line,) = lines(report)
        assert line.startswith(f"{url}/set-train: 2 of 3 shards found, missing 00001; pack the data again")
        with pytest.raises(MissingInputError, match="missing 00001"):
            report.raise_damage()
    assert verify(join_url(url, files[0])).damages == ()


def test_all_files_gone_is_named_by_the_manifest_alone(url: str) -> None:
    for file in packed(url):
        open_bucket(url).delete(file)
    report = verify(url)
    assert len(report.damages) == 3
    assert report.files == ()
    assert (report.num_records, report.num_missing_files, report.num_missing_records, report.num_stated) == (
        0,
        3,
        30,
        30,
    )
    with pytest.raises(MissingInputError):
        report.raise_damage()


def test_only_the_first_damaged_records_are_named_and_all_are_counted(url: str) -> None:
    (file,) = packed(url, num_shards=1, count=MAX_NAMED + 15)
    data = bytearray(open_bucket(url).read(file))
    data[20 :: len(data) // (MAX_NAMED + 15)] = bytes(MAX_NAMED + 15)
    open_bucket(url).write(file, bytes(data))
    report = verify(url)
    assert report.num_damaged >= MAX_NAMED + 14
    assert len(report.damages) == MAX_NAMED


@pytest.mark.parametrize("pack_bytes", [gzip.compress, zlib.compress])
def test_compressed_files_are_unpacked(pack_bytes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_CHUNK_BYTES", 1000)
    bucket = open_bucket(f"memory://{uuid.uuid4().hex}")
    framed = [frame(bytes([number]) * 300) for number in range(50)]
    good = pack_bytes(b"".join(framed))
    bucket.write("good.tfrecord", good)
    framed[7] = framed[7][:20] + b"!" + framed[7][21:]
    bucket.write("bad.tfrecord", pack_bytes(b"".join(framed)))
    bucket.write("cut.tfrecord", good[:-9])
    bucket.write("more.tfrecord", good + b"!" * 5000)
    if pack_bytes is gzip.compress:  # of which several may follow each other
        bucket.write("two.tfrecord", gzip.compress(framed[0]) + gzip.compress(framed[1]))
    report = verify(bucket.url)
    by_name = {file.url.rsplit("/", 1)[-1]: file for file in report.files}
    assert by_name["good.tfrecord"].num_records == 50
    assert by_name["good.tfrecord"].damages == ()
    (damage,) = by_name["bad.tfrecord"].damages
    assert (damage.record, damage.offset) == (7, 7 * 316)
    word = "GZIP" if pack_bytes is gzip.compress else "ZLIB"
    assert f"the file is cut off: its {word} stream does not end" in str(by_name["cut.tfrecord"].damages[0].error)
    (damage,) = by_name["more.tfrecord"].damages
    assert f"unexpected data after the end of the {word} stream" in str(damage.error)
    assert by_name["more.tfrecord"].size_bytes == len(good) + 5000
    if pack_bytes is gzip.compress:
        assert by_name["two.tfrecord"].num_records == 2
        assert by_name["two.tfrecord"].damages == ()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
def test_what_an_unpacker_holds_back_is_no_cut(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is packed may be read, and not yet all be unpacked."""
    monkeypatch.setattr(verification, "_CHUNK_BYTES", chunk_bytes)
    bucket = open_bucket(f"memory://{uuid.uuid4().hex}")
    bucket.write("x.tfrecord", gzip.compress(frame(bytes(1000)) * 3))
    assert verify(bucket.url).damages == ()


@given(
    lengths=st.lists(st.integers(0, 60), max_size=30),
    chunk_bytes=st.integers(1, 40),
    damaged=st.sets(st.integers(0, 29), max_size=3),
    cut_bytes=st.integers(0, 10),
)
def test_pieces_of_any_length_find_the_same(
    lengths: list[int], chunk_bytes: int, damaged: set[int], cut_bytes: int
) -> None:
    """Records longer and shorter than a piece, of which some are damaged, and a file that may be cut off."""
    damaged = {number for number in damaged if number < len(lengths) and lengths[number]}
    framed = [frame(bytes([number]) * length) for number, length in enumerate(lengths)]
    offsets = np.cumsum([0, *map(len, framed)]).tolist()
    for number in damaged:
        framed[number] = framed[number][:12] + b"\xff" + framed[number][13:]
    data = b"".join(framed)
    cut_bytes = min(cut_bytes, len(data))
    expected = {(number, offsets[number]) for number in damaged}
    if cut_bytes:
        data = data[:-cut_bytes]
        expected = {found for found in expected if found[1] + len(framed[found[0]]) <= len(data)}
        expected.add((len(lengths) - 1, offsets[-2]))
    checker = verification._RecordChecker("x", num_stated=None)
    saved = verification._CHUNK_BYTES
    verification._CHUNK_BYTES = chunk_bytes  # type: ignore[misc]
    try:
        for start in range(0, len(data), chunk_bytes):
            checker.feed(data[start : start + chunk_bytes])
        checker.finish()
    finally:
        verification._CHUNK_BYTES = saved  # type: ignore[misc]
    if data or not cut_bytes:
        if cut_bytes and len(data) <= offsets[-2]:  # nothing of the last record is left
            return
        assert {(damage.record, damage.offset) for damage in checker.damages} == expected
        assert checker.num_records == len(lengths)


def test_progress_adds_up_to_all_bytes(url: str) -> None:
    packed(url)
    seen: list[tuple[int, int]] = []
    threads: set[str] = set()

    def progress(num_bytes: int, total_bytes: int) -> None:
        seen.append((num_bytes, total_bytes))
        threads.add(threading.current_thread().name)

    report = verify(url, progress=progress, num_threads=3)
    assert sum(num_bytes for num_bytes, _ in seen) == report.size_bytes
    assert {total_bytes for _, total_bytes in seen} == {report.size_bytes}
    assert all(name.startswith("lockstep-verify") for name in threads)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that exists and cannot be read")
def test_a_file_that_cannot_be_read_is_one_of_the_damages(tmp_path: Path) -> None:
    files = packed(str(tmp_path))
    (tmp_path / files[0]).unlink()
    (tmp_path / files[0]).symlink_to("/proc/self/mem")  # whose first byte nobody can read, as on a broken disk
    report = verify(str(tmp_path))
    assert lines(report) == [f"cannot read {tmp_path}/{files[0]} after byte 0: Input/output error"]
    assert report.num_records == 20
    with pytest.raises(StorageError, match="Input/output error"):
        report.raise_damage()


def test_a_file_that_vanishes_is_one_of_the_damages(url: str) -> None:
    files = packed(url)
    vanished: list[str] = []

    def progress(num_bytes: int, total_bytes: int) -> None:
        if not vanished:
            open_bucket(url).delete(files[2])
            vanished.append(files[2])

    report = verify(url, num_threads=1, progress=progress)
    assert lines(report) == [f"there is no object {url}/{files[2]}"]
    assert report.num_records == 20


def test_an_interrupt_does_not_wait_for_whole_files(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_CHUNK_BYTES", 16)
    packed(url)
    seen: list[int] = []
    others_may_go_on = threading.Event()

    def progress(num_bytes: int, total_bytes: int) -> None:
        seen.append(num_bytes)
        if len(seen) == 1:
            raise KeyboardInterrupt
        others_may_go_on.wait(5)

    def stop(meter: Any) -> None:
        meter._is_stopped.set()
        others_may_go_on.set()

    monkeypatch.setattr(verification._Meter, "stop", stop)
    with pytest.raises(KeyboardInterrupt):
        verify(url, progress=progress, num_threads=3)
    assert len(seen) <= 3, "each thread has ended with its piece"


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=f"no packed file is at {tmp_path}"):
        verify(str(tmp_path))
    with pytest.raises(MissingInputError, match="no packed file is at"):
        verify(f"{tmp_path}/*.tfrec")
    with pytest.raises(InvalidInputError, match="num_threads; received 0"):
        verify(str(tmp_path), num_threads=0)


def test_a_manifest_of_another_format_is_named(url: str) -> None:
    packed(url)
    document = json.loads(open_bucket(url).read("set-train.manifest.json"))
    open_bucket(url).write("set-train.manifest.json", json.dumps(document | {"format": 99}).encode())
    with pytest.raises(CorruptDataError, match="a manifest of another format"):
        verify(url).raise_damage()
