import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.files.framing import find_damaged, frame, masked_crc32c, read_records, scan_lengths
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import open_bucket


def crc32c_by_hand(data: bytes) -> int:
    """CRC-32C bit by bit, from its definition: reflected polynomial 0x82F63B78, all ones before and after."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked_by_hand(data: bytes) -> int:
    crc = crc32c_by_hand(data)
    return ((crc >> 15 | crc << 17) % 2**32 + 0xA282EAD8) % 2**32


def frame_by_hand(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_by_hand(length)) + data + struct.pack("<I", masked_by_hand(data))


RECORDS = [b"first", b"", b"the third record"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "records.tfrec"
    path.write_bytes(b"".join(frame_by_hand(data) for data in RECORDS))
    return path


def test_crc_by_hand_is_crc32c() -> None:
    assert crc32c_by_hand(b"123456789") == 0xE3069283  # the check value that the algorithm's catalogues state


def test_a_frame_is_known_bytes() -> None:
    # An empty record, as TensorFlow's TFRecordWriter writes it.
    assert frame(b"").hex() == "0000000000000000" + "29039807" + "d8ea82a2"
    assert frame(b"first") == frame_by_hand(b"first")


@given(st.binary(max_size=300))
def test_masked_crc(data: bytes) -> None:
    assert masked_crc32c(data) == masked_by_hand(data)


def scan(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        return np.fromiter(scan_lengths(file, size_bytes=path.stat().st_size, url=str(path)), np.int64)


def test_damage_among_several_records_is_found() -> None:
    contents = bytearray(b"".join(map(frame, RECORDS)))
    offsets, lengths = np.array([12, 33, 49]), np.array([5, 0, 16])
    assert find_damaged(bytes(contents), offsets=offsets, lengths=lengths) is None
    assert find_damaged(b"", offsets=offsets[:0], lengths=lengths[:0]) is None
    contents[50] ^= 4
    assert find_damaged(bytes(contents), offsets=offsets, lengths=lengths) == 2
    assert find_damaged(bytes(contents), offsets=offsets[2:], lengths=lengths[2:]) == 0
    assert find_damaged(bytes(contents), offsets=offsets[:2], lengths=lengths[:2]) is None


def test_reads_what_was_framed(path: Path) -> None:
    assert list(read_records(str(path))) == RECORDS
    assert scan(path).tolist() == [5, 0, 16]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert list(read_records(str(tmp_path / "empty"))) == []


def test_a_large_record_is_read_in_parts() -> None:
    bucket = open_bucket("memory://framing-large")
    data = bytes(3_000_000)
    bucket.write("x", frame(data))
    assert list(read_records(bucket.url_of("x"))) == [data]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=f"{tmp_path}/gone"):
        list(read_records(str(tmp_path / "gone")))


@pytest.mark.parametrize("found", range(1, 32))
def test_a_file_cut_anywhere_in_a_record_is_reported(path: Path, found: int) -> None:
    whole = path.read_bytes()  # its last record begins at byte 37 and takes 32
    path.write_bytes(whole[: 37 + found])
    needed = 32 if found >= 12 else 12  # before the length is read, nobody knows that there is more to come
    message = (
        f"{path}: record 2 at byte 37: the file is cut off: the record needs {needed} bytes, {found} are there; "
        "copy the file again from its source, or pack it again"
    )
    with pytest.raises(CorruptDataError) as caught:
        list(read_records(str(path)))
    assert str(caught.value) == message
    with pytest.raises(CorruptDataError) as caught:
        scan(path)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("position", "what"),
    [
        (37, "the checksum of its length does not match"),  # the length itself
        (45, "the checksum of its length does not match"),  # its checksum
        (50, "the checksum of its data does not match"),  # the data
        (68, "the checksum of its data does not match"),  # its checksum
    ],
)
def test_a_flipped_bit_is_reported(path: Path, position: int, what: str) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)
    reader = read_records(str(path))
    assert [next(reader), next(reader)] == RECORDS[:2]
    with pytest.raises(CorruptDataError) as caught:
        next(reader)
    assert str(caught.value).startswith(f"{path}: record 2 at byte 37: {what}")


def test_a_file_of_another_format_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("not a file of records at all")
    with pytest.raises(CorruptDataError, match="record 0 at byte 0: the checksum of its length does not match"):
        list(read_records(str(tmp_path / "x")))
