import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data import FixedLenFeature, RawFeature, RecordSource, pack, parse_batch
from lockstep.data.sources import arrays, open_source
from lockstep.errors import CorruptDataError, InvalidInputError

ARRAYS = {
    "image": np.arange(7 * 4 * 3, dtype=np.uint8).reshape(7, 4, 3),
    "label": np.arange(7, dtype=np.int32) - 3,
    "weight": np.linspace(0, 1, 7),
    "name": np.array(["a", "bc", "", "d", "e", "f", "ü"]),
    "pair": np.arange(14, dtype=">f8").reshape(7, 2),
}


def packed(path: str, bucket: Path, **options: Any) -> dict[str, Any]:
    manifest = pack(open_source(path), str(bucket), name="set", **options).manifest
    records = RecordSource(f"{bucket}/set-train-*.tfrec")
    return parse_batch(records.__getitems__(range(len(records))), manifest.features)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_one_first_dimension_are_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    monkeypatch.setattr(arrays, "_READ_BYTES", 40)  # several reads
    path = str(tmp_path / "Set.npz")
    save(path, **ARRAYS)
    source = open_source(path)
    assert (source.name, source.splits()["train"].num_items) == ("set", 7)
    assert source.features == {
        "image": RawFeature((4, 3), np.uint8),
        "label": FixedLenFeature((), np.int64),
        "weight": FixedLenFeature((), np.float32),
        "name": FixedLenFeature((), bytes),
        "pair": RawFeature((2,), np.float64),
    }
    found = packed(path, tmp_path / "bucket", num_shards=3)
    np.testing.assert_array_equal(found["image"], ARRAYS["image"])
    np.testing.assert_array_equal(found["label"], ARRAYS["label"])
    np.testing.assert_array_equal(found["weight"], ARRAYS["weight"].astype(np.float32))
    np.testing.assert_array_equal(found["pair"], ARRAYS["pair"])
    assert [name.decode() for name in found["name"]] == ARRAYS["name"].tolist()


def test_one_array_is_packed_by_its_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    np.save(path, ARRAYS["image"])
    found = packed(path, tmp_path / "bucket", split="train")
    np.testing.assert_array_equal(found["value"], ARRAYS["image"])
    np.save(path, np.asfortranarray(ARRAYS["label"]))
    assert packed(path, tmp_path / "bucket")["value"].tolist() == ARRAYS["label"].tolist()


def test_splits_are_counted_ahead(tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    np.save(path, np.arange(100))
    found = pack(open_source(path), str(tmp_path / "bucket"), split={"train": 0.5, "val": 0.5}, num_shards=3)
    assert [len(manifest.shards) for manifest in found.manifests.values()] == [3, 3]
    assert found.num_records == 100


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


WHOLE = npy(np.arange(50))
NEGATIVE = WHOLE.replace(b"(50,), }", b"(-5,), }")


@pytest.mark.parametrize(
    ("name", "data", "error", "message"),
    [
        (
            "x.npy",
            npy(np.array([{"a": 1}]), allow_pickle=True),
            InvalidInputError,
            "this type cannot be packed; received 'object'",
        ),
        (
            "x.npy",
            npy(np.array(3)),
            InvalidInputError,
            r"its first dimension must be the number of records; received \(\)",
        ),
        ("x.npy", npy(np.zeros((3, 0))), InvalidInputError, "the length of one record; received 0"),
        ("x.npy", npy(np.zeros(3, [("a", int)])), InvalidInputError, "cannot be packed"),
        ("x.npy", npy(np.zeros(3, complex)), InvalidInputError, "cannot be packed; received 'complex128'"),
        (
            "x.npy",
            npy(np.asfortranarray(np.zeros((3, 2)))),
            InvalidInputError,
            "saved in Fortran order; save numpy.asc",
        ),
        ("x.npy", NEGATIVE, InvalidInputError, r"must be the number of records; received \(-5,\)"),
        ("x.npy", b"", CorruptDataError, r"x\.npy: value: not an array that can be read"),
        ("x.npy", WHOLE[:-9], CorruptDataError, "it is cut off; received '391 of 400 bytes'"),
        ("x.npz", b"PK", CorruptDataError, r"x\.npz: not an \.npz file that can be read"),
        ("x.npz", npz(), CorruptDataError, r"not an \.npz file; received \[\]"),
        ("x.npz", npz(a=WHOLE, b=npy(np.arange(49))), InvalidInputError, "differ in their number of rows"),
        ("x.npz", npz(a=WHOLE)[:200] + b"\0\0\0\0" + npz(a=WHOLE)[204:], CorruptDataError, "Bad CRC-32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # an archive's bytes have a time in them
)
def test_what_cannot_be_packed_is_named(
    tmp_path: Path, name: str, data: bytes, error: type[Exception], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error, match=message):
        packed(str(tmp_path / name), tmp_path / "bucket")


def write_head(path: Path, text: str, *, stated: int | None = None) -> str:
    head = text.encode()
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", stated or len(head)) + head + bytes(8))
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 200,
        "-" * 5000 + "1",
        "a b:\n  c\n d",
        "{1: 2, 'descr': 3}",
        "{'descr': {'a': 1}, 'fortran_order': False, 'shape': (1,)}",
    ],
)
def test_heads_that_are_no_heads_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(CorruptDataError, match=r"x.npy: value: not an array that can be read \(") as caught:
        open_source(write_head(tmp_path / "x.npy", text))
    assert "\n" not in str(caught.value)


def test_a_head_that_states_more_than_there_is_is_named_at_once(tmp_path: Path) -> None:
    huge = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000000,)}"
    with pytest.raises(CorruptDataError, match="it is cut off; received '8 of 8000000000000000000 bytes"):
        open_source(write_head(tmp_path / "x.npy", huge))
    with pytest.raises(CorruptDataError, match=r"not an array that can be read \(its head has 3,221,225,472 bytes\)"):
        open_source(write_head(tmp_path / "x.npy", "", stated=3 << 30))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", b"")
    with pytest.raises(CorruptDataError, match=r"x.npz: unsupported compression method; received 'bzip2'"):
        open_source(str(tmp_path / "x.npz"))
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    struct.pack_into("<I", data, data.find(b"PK\x01\x02") + 24, 1 << 31)
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(CorruptDataError, match="the stated length is impossible; received '2,147,483,648"):
        open_source(str(tmp_path / "x.npz"))
