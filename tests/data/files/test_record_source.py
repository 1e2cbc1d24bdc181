import pickle
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from lockstep.data import RecordSource, ShardName, find_shards, frame, records
from lockstep.data.files.shards import check_complete
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.storage import join_url, open_bucket


def write_shards(url: str, counts: list[int], *, data_set: str = "set-train", stated: bool = True) -> list[bytes]:
    """Writes one shard for each count, and returns all records."""
    written: list[bytes] = []
    for index, count in enumerate(counts):
        name = ShardName(data_set=data_set, index=index, num_shards=len(counts), num_records=count if stated else None)
        here = [f"{index}/{number}".encode() for number in range(count)]
        open_bucket(url).write(str(name), b"".join(map(frame, here)))
        written += here
    return written


@pytest.fixture(params=["local", "memory"])
def url(request: Any, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.mark.parametrize("held_bytes", [0, 50, 1 << 20])
def test_records_are_numbered_through_the_files(url: str, held_bytes: int) -> None:
    written = write_shards(url, [3, 0, 4, 1])
    source = RecordSource(join_url(url, "set-train-*.tfrec"), held_bytes=held_bytes)
    assert len(source) == 8
    assert [source[number] for number in range(8)] == written
    assert source[-1] == written[-1]
    assert source[np.int64(2)] == written[2]
    assert list(source.__getitems__([7, 0, 0, -8, 3])) == [written[7], written[0], written[0], written[0], written[3]]
    assert list(source.num_records_by_url.values()) == [3, 0, 4, 1]
    for number in (8, -9):
        with pytest.raises(IndexError, match=f"no record {number}"):
            source[number]


def test_it_may_be_pickled(url: str) -> None:
    written = write_shards(url, [3, 4])
    for held_bytes in (0, 1 << 20):
        source = pickle.loads(pickle.dumps(RecordSource(join_url(url, "*.tfrec"), held_bytes=held_bytes)))
        assert [source[number] for number in range(7)] == written


def test_threads_may_read_it(url: str) -> None:
    written = write_shards(url, [50, 50])
    source = pickle.loads(pickle.dumps(RecordSource(join_url(url, "*.tfrec"))))
    wrong: list[int] = []

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed).permutation(100).tolist()
        wrong.extend(number for number in numbers if source[number] != written[number])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_grain_takes_it(url: str) -> None:
    written = write_shards(url, [3, 4])
    dataset = records(join_url(url, "*.tfrec"))
    assert isinstance(dataset, grain.MapDataset)
    assert [dataset[number] for number in range(7)] == written
    assert next(iter(dataset.map(len).batch(7))).tolist() == [3] * 7


def test_files_named_one_by_one_keep_their_order(url: str) -> None:
    write_shards(url, [2, 2, 2])
    found = find_shards(join_url(url, "*.tfrec"))
    source = RecordSource([found[2], found[0]])
    assert [source[number] for number in range(4)] == [b"2/0", b"2/1", b"0/0", b"0/1"]
    assert source.urls == (found[2], found[0])


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ([3], "fashion-mnist-train-*.tfrec: 7 of 8 shards found, missing 00003; "),
        ([0, 7], "fashion-mnist-train-*.tfrec: 6 of 8 shards found, missing 00000, 00007; "),
    ],
)
def test_missing_shards_are_named(url: str, lost: list[int], message: str) -> None:
    write_shards(url, [1] * 8, data_set="fashion-mnist-train")
    for index in lost:
        open_bucket(url).delete(f"fashion-mnist-train-0000{index}-of-00008-1.tfrec")
    with pytest.raises(MissingInputError) as caught:
        RecordSource(join_url(url, "fashion-mnist-train-*.tfrec"))
    assert str(caught.value).startswith(message)


def test_each_data_set_of_a_pattern_is_checked(url: str) -> None:
    write_shards(url, [1, 1], data_set="a-train")
    write_shards(url, [1, 1, 1], data_set="a-test")
    assert len(RecordSource(join_url(url, "a-*.tfrec"))) == 5
    open_bucket(url).delete("a-test-00002-of-00003-1.tfrec")
    with pytest.raises(MissingInputError, match="2 of 3 shards found, missing 00002"):
        RecordSource(join_url(url, "a-*.tfrec"))


def test_two_packings_of_a_data_set_are_told_apart(url: str) -> None:
    write_shards(url, [1, 1])
    write_shards(url, [1])
    with pytest.raises(CorruptDataError, match="set-train exists with 1 and 2 shards"):
        RecordSource(join_url(url, "*.tfrec"))
    open_bucket(url).delete("set-train-00000-of-00001-1.tfrec")
    write_shards(url, [2, 1])
    with pytest.raises(CorruptDataError, match="more than one file for shard 00000 of set-train"):
        RecordSource(join_url(url, "*.tfrec"))


def test_nothing_found_is_an_error(url: str) -> None:
    with pytest.raises(MissingInputError, match=r"no file matches .*\*\.tfrec"):
        RecordSource(join_url(url, "*.tfrec"))
    with pytest.raises(MissingInputError, match="no file was named"):
        RecordSource([])
    with pytest.raises(InvalidInputError, match="held_bytes"):
        RecordSource([join_url(url, "x")], held_bytes=-1)


def test_a_count_that_is_not_the_names_is_named(url: str) -> None:
    open_bucket(url).write("s-00000-of-00001-3.tfrec", frame(b"a") + frame(b"b"))
    with pytest.raises(CorruptDataError) as caught:
        RecordSource(join_url(url, "*.tfrec"))
    message = f"{join_url(url, 's-00000-of-00001-3.tfrec')}: 2 records found, 3 stated in the file's name; "
    assert str(caught.value).startswith(message)


def test_a_name_need_not_state_a_count(url: str) -> None:
    write_shards(url, [2, 3], stated=False)
    open_bucket(url).write("other.tfrec", frame(b"a"))
    assert len(RecordSource(join_url(url, "set-*.tfrec"))) == 5
    assert len(RecordSource(join_url(url, "*"))) == 6


def test_a_cut_file_is_named_when_it_is_opened(url: str) -> None:
    whole = frame(b"first") + frame(b"second")
    open_bucket(url).write("x.tfrec", whole[:-1])
    with pytest.raises(CorruptDataError, match=r"x\.tfrec: record 1 at byte 21: the file is cut off"):
        RecordSource(join_url(url, "x.tfrec"))


@pytest.mark.parametrize("held_bytes", [0, 1 << 20])
def test_a_damaged_record_is_named_when_it_is_read(url: str, held_bytes: int) -> None:
    damaged = bytearray(frame(b"first") + frame(b"second") + frame(b"third"))
    damaged[21 + 12] ^= 1
    open_bucket(url).write("x.tfrec", bytes(damaged))
    source = RecordSource(join_url(url, "x.tfrec"), held_bytes=held_bytes)
    assert [source[0], source[2]] == [b"first", b"third"]
    with pytest.raises(CorruptDataError) as caught:
        source[1]
    message = f"{join_url(url, 'x.tfrec')}: record 1 at byte 21: the checksum of its data does not match"
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("fashion-mnist-train-00003-of-00008-7500.tfrec", ("fashion-mnist-train", 3, 8, 7500)),
        ("gs://b/p/a-00000-of-00010.tfrecord", ("a", 0, 10, None)),
        ("flowers00-230.tfrec", None),
        ("a-00000-of-00010.json", None),
    ],
)
def test_names_of_shards(name: str, parsed: tuple[Any, ...] | None) -> None:
    found = ShardName.parse(name)
    assert (found and (found.data_set, found.index, found.num_shards, found.num_records)) == parsed


def test_a_shard_is_named_as_it_is_read() -> None:
    name = ShardName(data_set="fashion-mnist-train", index=3, num_shards=8, num_records=7500)
    assert str(name) == "fashion-mnist-train-00003-of-00008-7500.tfrec"
    assert ShardName.parse(str(name)) == name


@pytest.mark.parametrize(
    "name", ["mnist-train.tfrecord-0000{}-of-00003", "train-0000{}-of-00003", "s-0000{}-of-00003.array_record"]
)
def test_shards_that_others_named_are_counted_too(tmp_path: Path, name: str) -> None:
    for index in (0, 2):
        (tmp_path / name.format(index)).write_bytes(frame(b"x"))
    (tmp_path / "other-0-of-2").write_bytes(b"")  # says nothing
    with pytest.raises(MissingInputError, match="2 of 3 shards found, missing 00001"):
        find_shards(f"{tmp_path}/*")
    (tmp_path / name.format(1)).write_bytes(frame(b"y"))
    assert len(find_shards(f"{tmp_path}/*")) == 4


def test_many_shards_are_counted_fast() -> None:
    count = 20_000
    names = [f"s-{index:05d}-of-{count:05d}.tfrec" for index in range(count)]
    began = time.process_time()
    check_complete(names, what="*")
    assert time.process_time() - began < 2  # it takes 0.1 s; each compared with each other took 3
    with pytest.raises(CorruptDataError, match="more than one file for shard 00007 of s"):
        check_complete([*names, "s-00007-of-20000-5.tfrec"], what="*")
