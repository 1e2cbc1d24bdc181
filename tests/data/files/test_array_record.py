"""ArrayRecord files: records by number, of this machine and of buckets elsewhere."""

import pickle
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from lockstep.data import Batches, FixedLenFeature, Skip, encode_example, frame, parse_batch
from lockstep.data.files.array_record import ArrayRecordSource, is_array_record
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.home import Home
from lockstep.storage import join_url, open_bucket
from lockstep.storage.memory import MemoryBucket

array_record = pytest.importorskip("array_record.python.array_record_module")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    return Home.from_env()


@pytest.fixture(params=["local", "memory"])
def url(request: Any, tmp_path: Path) -> str:
    return str(tmp_path / "bucket") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def contents(tmp_path: Path, records: list[bytes], *, group_size: int = 1) -> bytes:
    path = tmp_path / uuid.uuid4().hex
    writer = array_record.ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in records:
        writer.write(record)
    writer.close()
    return path.read_bytes()


def write_set(url: str, tmp_path: Path, counts: list[int], *, group_size: int = 1) -> list[bytes]:
    written: list[bytes] = []
    for index, count in enumerate(counts):
        here = [f"{index}/{number}".encode() for number in range(count)]
        name = f"s-{index:05d}-of-{len(counts):05d}.array_record"
        open_bucket(url).write(name, contents(tmp_path, here, group_size=group_size))
        written += here
    return written


@pytest.mark.parametrize("group_size", [1, 3])
def test_records_are_numbered_through_the_files(url: str, tmp_path: Path, group_size: int) -> None:
    written = write_set(url, tmp_path, [3, 0, 4, 1], group_size=group_size)
    source = ArrayRecordSource(join_url(url, "s-*"))
    assert (len(source), source.num_files, len(source.urls)) == (8, 4, 4)
    assert [source[number] for number in range(8)] == written
    assert (source[-1], source[np.int64(2)]) == (written[-1], written[2])
    assert list(source.__getitems__([7, 0, 0, -8, 3])) == [written[7], written[0], written[0], written[0], written[3]]
    assert list(source.__getitems__([])) == []
    assert list(source.num_records_by_url.values()) == [3, 0, 4, 1]
    part = source.open_files([3, 0])
    assert [part[number] for number in range(4)] == [written[7], *written[:3]]
    for number in (8, -9):
        with pytest.raises(IndexError, match=f"no record {number}"):
            source[number]


def test_it_may_be_pickled_and_grain_takes_it(url: str, tmp_path: Path) -> None:
    written = write_set(url, tmp_path, [3, 4])
    source = pickle.loads(pickle.dumps(ArrayRecordSource(join_url(url, "s-*"))))
    assert [source[number] for number in range(7)] == written
    dataset = grain.MapDataset.source(source).shuffle(seed=1)
    assert sorted(dataset[number] for number in range(7)) == written


def test_threads_may_read_it(url: str, tmp_path: Path) -> None:
    written = write_set(url, tmp_path, [50, 50])
    source = pickle.loads(pickle.dumps(ArrayRecordSource(join_url(url, "s-*"))))
    wrong: list[int] = []

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed).permutation(100).tolist()
        wrong.extend(number for number in numbers if source[number] != written[number])
        found = list(source.__getitems__(numbers))
        wrong.extend(number for number, record in zip(numbers, found, strict=True) if record != written[number])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_batches_of_it_are_parsed(tmp_path: Path) -> None:
    records = [encode_example({"x": number}) for number in range(20)]
    (tmp_path / "x").write_bytes(contents(tmp_path, records))
    batch = ArrayRecordSource(str(tmp_path / "x")).__getitems__(range(20))
    assert parse_batch(batch, {"x": FixedLenFeature((), np.int64)})["x"].tolist() == list(range(20))


def test_its_files_are_told_from_others(tmp_path: Path) -> None:
    assert is_array_record(contents(tmp_path, []))
    assert is_array_record(contents(tmp_path, [b"a"])[:12])
    assert not is_array_record(frame(b"a"))
    assert not is_array_record(b"")
    (tmp_path / "x").write_bytes(frame(b"a"))
    with pytest.raises(CorruptDataError, match="x: it is not an ArrayRecord file"):
        ArrayRecordSource(str(tmp_path / "x"))
    with pytest.raises(MissingInputError, match="no file matches"):
        ArrayRecordSource(str(tmp_path / "no*"))
    for gone in (str(tmp_path / "gone"), f"memory://{uuid.uuid4().hex}/gone"):
        with pytest.raises(MissingInputError, match=r"there is no object .*gone"):
            ArrayRecordSource([gone])


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    whole = contents(tmp_path, [b"a", b"b"])
    path = tmp_path / "x"
    for size in (64, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match="x: the file is cut off or damaged: its index cannot be read"):
            ArrayRecordSource(str(path))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    records = [f"record {number} of them".encode() * 5 for number in range(5)]
    whole = bytearray(contents(tmp_path, records))
    writer = array_record.ArrayRecordWriter(str(tmp_path / "y"), "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()
    whole = bytearray((tmp_path / "y").read_bytes())
    whole[bytes(whole).index(records[3])] ^= 1
    (tmp_path / "x").write_bytes(whole)
    source = ArrayRecordSource(str(tmp_path / "x"))
    assert list(source.__getitems__([0, 1, 2, 4])) == [records[0], records[1], records[2], records[4]]
    for numbers in ([3], [0, 3, 4]):
        with pytest.raises(CorruptDataError) as caught:
            source.__getitems__(numbers)
        message = str(caught.value)
        assert message.startswith(f"{tmp_path}/x: record 3: Corrupted Riegeli/records file: chunk data hash mismatch")
        assert "\n" not in message
    skipping = ArrayRecordSource(str(tmp_path / "x"), on_error=Skip(1))
    assert [skipping[number] for number in range(-5, 0)] == [*records[:3], None, records[4]]
    batches = Batches(skipping.open_files([0]), batch_size=5, transform=list)
    assert next(iter(batches)) == [*records[:3], records[2], records[4]]
    assert list(batches.skipped) == [3]


def test_files_elsewhere_are_copied_once(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    written = write_set(url, tmp_path, [3, 4])
    copied: list[str] = []
    original = MemoryBucket._download

    def download(self: MemoryBucket, key: str, target: Path) -> None:
        copied.append(key)
        original(self, key, target)

    monkeypatch.setattr(MemoryBucket, "_download", download)
    for _ in range(2):
        assert list(ArrayRecordSource(join_url(url, "s-*"))) == written
    assert sorted(copied) == [f"s-0000{index}-of-00002.array_record" for index in range(2)]
    open_bucket(url).write("s-00000-of-00002.array_record", contents(tmp_path, [b"x" * 100_000]))
    assert list(ArrayRecordSource(join_url(url, "s-*"))) == [b"x" * 100_000, *written[3:]]
    assert len(copied) == 3
    source = ArrayRecordSource(join_url(url, "s-*"))
    for path in (home.cache / "array_records").iterdir():
        path.unlink()
    assert list(source)[1:] == written[3:]  # what is open stays open
    with pytest.raises(MissingInputError, match=r"there is no object .*, or no copy of it at"):
        list(pickle.loads(pickle.dumps(source)))


def test_copies_are_bounded(tmp_path: Path, home: Home) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    write_set(url, tmp_path, [3])
    size = open_bucket(url).size_bytes("s-00000-of-00001.array_record")
    with pytest.raises(InvalidInputError) as caught:
        ArrayRecordSource(join_url(url, "s-*"), cached_bytes=size - 1)
    message = str(caught.value)
    assert message.startswith(f"copies of ArrayRecord files would exceed the limit in {home.cache}/array_records;")
    assert f"received '{size} bytes with {url}/s-00000-of-00001.array_record'; allowed: {size - 1} bytes" in message
    assert len(ArrayRecordSource(join_url(url, "s-*"), cached_bytes=size)) == 3
    other = f"memory://{uuid.uuid4().hex}"
    write_set(other, tmp_path, [3])
    with pytest.raises(InvalidInputError, match=f"received '{2 * size} bytes with"):
        ArrayRecordSource(join_url(other, "s-*"), cached_bytes=2 * size - 1)
    with pytest.raises(InvalidInputError, match="cached_bytes; received -1"):
        ArrayRecordSource(join_url(other, "s-*"), cached_bytes=-1)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(InvalidInputError) as caught:
        ArrayRecordSource(str(tmp_path / "x"))
    assert str(caught.value) == (
        "ArrayRecord files need the package array-record, which is not installed; "
        "run: pip install 'lockstep-train[arrayrecord]'"
    )
