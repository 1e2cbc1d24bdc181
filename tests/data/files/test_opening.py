"""Files of records are opened by what they are."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import pytest

from lockstep.data import Batches, CompressedRecords, RecordSource, Skip, frame, records
from lockstep.data.files.kinds import kind_of
from lockstep.errors import CorruptDataError, InvalidInputError

RECORDS = [b"record %d" % number for number in range(5)]
PLAIN = b"".join(map(frame, RECORDS))


def array_record(tmp_path: Path) -> bytes:
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(tmp_path / "written"), "group_size:1")
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return (tmp_path / "written").read_bytes()


KINDS: dict[str, Callable[[Path], bytes]] = {
    "TFRecord": lambda _: PLAIN,
    "GZIP": lambda _: gzip.compress(PLAIN),
    "ZLIB": lambda _: zlib.compress(PLAIN),
    "ArrayRecord": array_record,
}


@pytest.mark.parametrize("kind", KINDS)
def test_records_takes_each_kind(tmp_path: Path, kind: Any) -> None:
    contents = KINDS[kind](tmp_path)
    assert kind_of(contents[:4096]) == kind
    for index in range(2):
        (tmp_path / f"s-{index}.tfrec").write_bytes(contents)
    dataset = records(f"{tmp_path}/s-*.tfrec")
    assert isinstance(dataset, CompressedRecords if kind in ("GZIP", "ZLIB") else grain.MapDataset)
    assert list(dataset) == RECORDS * 2


def test_an_empty_file_is_one_of_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.tfrec").write_bytes(b"")
    assert list(records(tmp_path / "a.tfrec")) == []


@pytest.mark.parametrize("on_error", ["raise", Skip(9)])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("GZIP", "b: it is not a plain TFRecord file but compressed by GZIP; read it with .*CompressedRecords"),
        ("ZLIB", "b: it is not a plain TFRecord file but compressed by ZLIB; read it with .*CompressedRecords"),
        ("ArrayRecord", "b: it is not a plain TFRecord file but an ArrayRecord file; read it with .*ArrayRecordSource"),
    ],
)
def test_another_kind_among_plain_files_says_what_reads_it(
    tmp_path: Path, kind: str, message: str, on_error: Any
) -> None:
    (tmp_path / "a").write_bytes(PLAIN)
    (tmp_path / "b").write_bytes(KINDS[kind](tmp_path))
    for read in (records, RecordSource):
        with pytest.raises(CorruptDataError, match=message):
            read([str(tmp_path / "a"), str(tmp_path / "b")], on_error=on_error)


def test_another_kind_among_array_records_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(array_record(tmp_path))
    (tmp_path / "b").write_bytes(PLAIN)
    with pytest.raises(CorruptDataError, match="b: it is not an ArrayRecord file; name files of one kind"):
        records([str(tmp_path / "a"), str(tmp_path / "b")])


@pytest.mark.parametrize("first", [PLAIN, gzip.compress(PLAIN)], ids=["plain", "GZIP"])
def test_an_array_record_file_among_files_read_in_order_is_told(tmp_path: Path, first: bytes) -> None:
    (tmp_path / "a").write_bytes(first)
    (tmp_path / "b").write_bytes(array_record(tmp_path))
    iterator = iter(CompressedRecords([str(tmp_path / "a"), str(tmp_path / "b")], cycle_length=2))
    next(iterator)
    message = "b: it is an ArrayRecord file, not a TFRecord file; name files of one kind; .*Source"
    with pytest.raises(CorruptDataError, match=message):
        next(iterator)


def test_records_of_compressed_files_cannot_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(PLAIN))
    with pytest.raises(InvalidInputError, match=r"cannot be skipped.*a, compressed by GZIP.*leave out on_error"):
        records(str(tmp_path / "a"), on_error=Skip(1))


def test_batches_refuses_what_has_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(PLAIN))
    dataset = records(str(tmp_path / "a"))
    for source in (dataset, dataset.batch(2), iter([b""])):  # type: ignore[arg-type] # that is what is tested
        message = r"by number, which its source does not support; .*; give it to fit as it is, after .batch\(\)"
        with pytest.raises(InvalidInputError, match=message):
            Batches(source, batch_size=2, transform=list)  # type: ignore[arg-type]
