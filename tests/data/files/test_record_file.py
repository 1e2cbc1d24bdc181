"""Records of files that are read while somebody cuts them off, deletes them, or answers slowly."""

import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lockstep.data import Batches, RecordFiles, RecordSource, Skip, frame, records
from lockstep.data.files.descriptors import raise_open_file_limit
from lockstep.errors import CorruptDataError, MissingInputError, StorageError
from lockstep.storage import join_url, open_bucket
from lockstep.storage.memory import MemoryBucket

RECORDS = [bytes([number % 251]) * (1000 + number % 7) for number in range(300)]


@pytest.fixture
def url() -> str:
    url = f"memory://{uuid.uuid4().hex}"
    for index in range(3):
        open_bucket(url).write(f"{index}.tfrec", b"".join(map(frame, RECORDS[index * 100 : index * 100 + 100])))
    return url


class Requests:
    """What is asked of a bucket, and how many requests at once."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int | None]] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self.enough = threading.Event()
        self.wanted_at_once = 1

    def __enter__(self) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            if self._at_once >= self.wanted_at_once:
                self.enough.set()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._at_once -= 1


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    requests = Requests()
    read = MemoryBucket._read

    def counted(self: MemoryBucket, key: str, start_byte: int, end_byte: int | None) -> bytes:
        with requests:
            requests.ranges.append((start_byte, end_byte))
            assert requests.enough.wait(20)
            return read(self, key, start_byte, end_byte)

    monkeypatch.setattr(MemoryBucket, "_read", counted)
    yield requests
    requests.enough.set()


def test_records_far_from_each_other_are_read_side_by_side(url: str, requests: Requests) -> None:
    requests.enough.set()
    source = RecordSource(join_url(url, "*.tfrec"), held_bytes=0, num_connections=8)
    numbers = [0, 99, 100, 180, 299, 205]
    requests.ranges.clear()
    requests.enough.clear()
    requests.wanted_at_once = 6  # none is answered before all are asked
    assert list(source.__getitems__(numbers)) == [RECORDS[number] for number in numbers]
    assert len(requests.ranges) == 6


def test_no_more_are_read_at_once_than_was_said(url: str, requests: Requests) -> None:
    requests.enough.set()
    source = RecordSource(join_url(url, "*.tfrec"), held_bytes=0, num_connections=2)
    requests.most_at_once = 0
    numbers = list(range(0, 300, 70))
    assert list(source.__getitems__(numbers)) == [RECORDS[number] for number in numbers]
    assert requests.most_at_once <= 2


@pytest.mark.parametrize("order", ["sorted", "backwards", "shuffled"])
def test_records_near_each_other_are_read_at_once(url: str, requests: Requests, order: str) -> None:
    requests.enough.set()
    source = RecordSource(join_url(url, "*.tfrec"), held_bytes=0)
    requests.ranges.clear()
    numbers = np.arange(150)
    if order != "sorted":
        numbers = numbers[::-1] if order == "backwards" else np.random.default_rng(0).permutation(numbers)
    assert list(source.__getitems__(numbers)) == [RECORDS[number] for number in numbers.tolist()]
    assert len(requests.ranges) == 2  # one a file
    assert list(source.__getitems__([7, 7, 3])) == [RECORDS[7], RECORDS[7], RECORDS[3]]


def test_a_file_that_vanished_is_named_with_the_record(url: str) -> None:
    source = RecordSource(join_url(url, "*.tfrec"), held_bytes=0)
    assert source[150] == RECORDS[150]
    open_bucket(url).delete("1.tfrec")
    assert source[50] == RECORDS[50]
    with pytest.raises(MissingInputError) as caught:
        source[101]
    offset = len(frame(RECORDS[100]))
    assert str(caught.value).startswith(
        f"{join_url(url, '1.tfrec')}: record 1 at byte {offset}: the file is no longer there; "
    )


@pytest.mark.parametrize("is_local", [True, False])
def test_a_file_that_is_cut_off_while_it_is_read_is_named_with_the_record(
    url: str, tmp_path: Path, is_local: bool
) -> None:
    whole = b"".join(map(frame, RECORDS[:100]))
    left = len(whole) - len(frame(RECORDS[99])) - 5
    url = str(tmp_path) if is_local else url
    open_bucket(url).write("0.tfrec", whole)
    source = RecordSource(join_url(url, "0.tfrec"), held_bytes=0)
    if is_local:
        with open(tmp_path / "0.tfrec", "r+b") as file:
            file.truncate(left)
    else:
        open_bucket(url).write("0.tfrec", whole[:left])
    assert source[97] == RECORDS[97]
    with pytest.raises(CorruptDataError) as caught:
        source.__getitems__([97, 98, 99])
    offset = len(whole) - len(frame(RECORDS[99])) - len(frame(RECORDS[98]))
    assert str(caught.value).startswith(
        f"{join_url(url, '0.tfrec')}: record 98 at byte {offset}: the file was cut off while it was read: "
    )


STATED = "set-00000-of-00001-100.tfrec"
WHOLE = b"".join(map(frame, RECORDS[:100]))


@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
@pytest.mark.parametrize("is_local", [True, False])
def test_what_was_lost_of_a_file_that_is_cut_off_may_be_skipped(
    url: str, tmp_path: Path, is_local: bool, held_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path) if is_local else url
    open_bucket(url).write(STATED, WHOLE[:-1500])
    with pytest.raises(CorruptDataError, match=r"record 98 at byte .*: the file is cut off"):
        RecordSource(join_url(url, STATED))
    source = RecordSource(join_url(url, STATED), on_error=Skip(2), held_bytes=held_bytes)
    assert len(source) == 100
    assert [source[number] for number in (0, 97, 98, 99, -1)] == [RECORDS[0], RECORDS[97], None, None, None]
    with pytest.raises(CorruptDataError, match=r"record 98 at byte .*: the file is cut off"):
        source.__getitems__([97, 98])
    batches = Batches(source, batch_size=40, transform=list)
    for _ in range(2):
        assert [record for batch in batches for record in batch] == [*RECORDS[:98], RECORDS[97], RECORDS[97]]
    assert sorted(batches.skipped) == [98, 99]
    assert len([record for record in caplog.records if "skipped record" in record.getMessage()]) == 2  # by two readers
    too_many = RecordSource(join_url(url, STATED), on_error=Skip(1), held_bytes=held_bytes)
    assert too_many[98] is None
    with pytest.raises(CorruptDataError, match="more unreadable records than may be skipped"):
        too_many[99]


def test_a_file_that_ends_between_records_has_lost_some(url: str) -> None:
    open_bucket(url).write(STATED, b"".join(map(frame, RECORDS[:97])))
    with pytest.raises(CorruptDataError, match="97 records found, 100 stated"):
        RecordSource(join_url(url, STATED))
    source = pickle.loads(pickle.dumps(RecordSource(join_url(url, STATED), on_error=Skip(3))))
    assert [source[number] for number in (96, 97)] == [RECORDS[96], None]
    assert len(source) == 100


def test_a_file_of_more_records_than_it_states_is_another_one(url: str) -> None:
    open_bucket(url).write(STATED, WHOLE + frame(b"one more"))
    with pytest.raises(CorruptDataError, match="101 records found, 100 stated"):
        RecordSource(join_url(url, STATED), on_error=Skip(3))


def test_without_a_stated_number_what_is_whole_is_read(url: str, caplog: pytest.LogCaptureFixture) -> None:
    open_bucket(url).write("x.tfrec", WHOLE[:-1500])
    source = RecordFiles(join_url(url, "x.tfrec"), on_error=Skip(3)).open_files([0])
    assert len(source) == 98
    assert "the number of lost records is unknown" in caplog.text


def test_grain_leaves_out_what_is_skipped(url: str) -> None:
    damaged = bytearray(WHOLE)
    damaged[len(frame(RECORDS[0])) + 20] ^= 1
    open_bucket(url).write("x.tfrec", bytes(damaged))
    dataset = records(join_url(url, "x.tfrec"), on_error=Skip(3))
    assert list(dataset.to_iter_dataset()) == [RECORDS[0], *RECORDS[2:100]]


@pytest.mark.skipif(sys.platform == "win32", reason="counts no files")
def test_more_files_than_may_be_open_at_first(tmp_path: Path) -> None:
    import resource

    for number in range(40):
        (tmp_path / f"{number:02d}.tfrec").write_bytes(frame(b"%d" % number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as file:
        low = file.fileno() + 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        source = RecordSource(f"{tmp_path}/*.tfrec")
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        copied = pickle.loads(pickle.dumps(source))  # its files are opened one by one
        assert [copied[number] for number in range(40)] == [b"%d" % number for number in range(40)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, low), hard))
    with pytest.raises(StorageError, match=r"may not open that many files; .*; raise the limit"):
        raise_open_file_limit(1 << 62)


def test_a_file_that_is_read_again_and_is_shorter_is_told() -> None:
    bucket = open_bucket(f"memory://{uuid.uuid4().hex}")
    bucket.write("a.tfrec", frame(b"first") + frame(b"second"))
    source = pickle.loads(pickle.dumps(RecordSource(bucket.url_of("a.tfrec"))))
    bucket.write("a.tfrec", frame(b"first"))
    assert source[0] == b"first"
    with pytest.raises(CorruptDataError, match="record 1 at byte 21: the file was cut off while it was read"):
        source[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_forked_process_reads_ranges_too() -> None:
    script = (
        "import os, signal\n"
        "from lockstep.data import RecordSource, frame\n"
        "from lockstep.storage import open_bucket\n"
        "open_bucket('memory://forked').write('a.tfrec', frame(b'first') + frame(b'second'))\n"
        "source = RecordSource('memory://forked/a.tfrec', held_bytes=0)\n"
        "assert source[0] == b'first'\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    signal.alarm(20)\n"
        "    os._exit(source[1] == b'second')\n"
        "assert os.waitpid(pid, 0)[1] >> 8 == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
