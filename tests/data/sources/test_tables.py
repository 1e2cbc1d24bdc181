import datetime
import decimal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep.data import FixedLenFeature, RecordSource, VarLenFeature, pack, parse_batch
from lockstep.data.sources import open_source
from lockstep.data.sources.parquet_rows import ParquetTable
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError

CSV = 'name,age,height,is_new\nAda,36,1.65,true\n"Grace, Dr",85,,false\n,0,1.7,true\n'


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def packed(path: str, bucket: Path, **options: Any) -> dict[str, Any]:
    source = open_source(path, **{name: options.pop(name) for name in ("key", "column_types") if name in options})
    manifest = pack(source, str(bucket), name="set", **options).manifest
    records = RecordSource(f"{bucket}/set-train-*.tfrec")
    return parse_batch(records.__getitems__(range(len(records))), manifest.features)


def test_columns_of_csv_files_are_what_they_look_like(tmp_path: Path) -> None:
    path = write(tmp_path / "People.csv", CSV)
    source = open_source(path)
    assert (source.name, source.origin, source.classes) == ("people", path, ())
    assert source.features == {
        "name": FixedLenFeature((), bytes),
        "age": FixedLenFeature((), np.int64),
        "height": FixedLenFeature((), np.float32),
        "is_new": FixedLenFeature((), np.int64),
    }
    found = packed(path, tmp_path / "bucket")
    assert found["name"].tolist() == [b"Ada", b"Grace, Dr", b""]
    assert found["age"].tolist() == [36, 85, 0]
    np.testing.assert_array_equal(found["height"], np.array([1.65, np.nan, 1.7], np.float32))
    assert found["is_new"].tolist() == [1, 0, 1]


def test_columns_of_csv_files_are_what_they_are_said_to_be(tmp_path: Path) -> None:
    path = write(tmp_path / "codes.csv", "code,count\n007,1\n008,2\n")
    found = packed(path, tmp_path / "bucket", column_types={"code": "text", "count": "float"})
    assert found["code"].tolist() == [b"007", b"008"]
    assert found["count"].dtype == np.float32


def test_several_files_are_one_table(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"part-{number}.csv", f"x\n{2 * number}\n{2 * number + 1}\n")
    source = open_source(str(tmp_path / "part-*.csv"))
    assert source.origin.startswith("3 files, from ")
    assert packed(str(tmp_path / "part-*.csv"), tmp_path / "bucket")["x"].tolist() == list(range(6))
    write(tmp_path / "part-3.csv", "y\n1\n")
    with pytest.raises(InvalidInputError, match=r"part-3\.csv has other columns than .*part-0\.csv; received 'y: "):
        packed(str(tmp_path / "part-*.csv"), tmp_path / "bucket")
    write(tmp_path / "part-3.csv", "x\n1.5\n")
    with pytest.raises(
        CorruptDataError, match=r"part-3\.csv: line 2: '1.5' in column 'x' is not a valid int; correct it,"
    ):
        packed(str(tmp_path / "part-*.csv"), tmp_path / "bucket")
    for number, column in enumerate([np.arange(2), np.arange(2.0)]):
        pq.write_table(pa.table({"x": column}), str(tmp_path / f"part-{number}.parquet"))
    with pytest.raises(InvalidInputError, match=r"part-1\.parquet has other columns .*'x: double'; allowed: x: int64"):
        packed(str(tmp_path / "part-*.parquet"), tmp_path / "bucket")


def test_a_column_of_keys_decides_splits(tmp_path: Path) -> None:
    rows = [f"user-{number},{number}" for number in range(60)]
    shares = {"train": 0.5, "val": 0.5}
    sides = []
    for name, lines in (("a", rows), ("b", rows[::-1])):
        path = write(tmp_path / f"{name}.csv", "\n".join(["user,x", *lines]) + "\n")
        source = open_source(path, key="user")
        assert source.options == {"key": "user"}
        pack(source, str(tmp_path / name), name="set", split=shares)
        records = RecordSource(f"{tmp_path / name}/set-val-*.tfrec")
        sides.append({bytes(records[number]) for number in range(len(records))})
    assert sides[0] == sides[1]
    assert 15 < len(sides[0]) < 45
    with pytest.raises(InvalidInputError, match=r"has no column for keys .*; received 'usr'; .* did you mean 'user'"):
        open_source(str(tmp_path / "a.csv"), key="usr")


TABLE = {
    "id": pa.array([1, 2, 3], pa.uint16()),
    "weight": pa.array([0.5, None, 2.0], pa.float64()),
    "word": pa.array(["a", "b", "ü"]),
    "blob": pa.array([b"\x00", b"", b"\xff"], pa.binary()),
    "tags": pa.array([["x", "y"], [], ["z"]], pa.list_(pa.string())),
    "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    "kind": pa.array(["p", "q", "p"]).dictionary_encode(),
    "day": pa.array([datetime.date(2030, 1, day) for day in (1, 2, 3)]),
    "price": pa.array([decimal.Decimal("1.50")] * 3, pa.decimal128(6, 2)),
    "ok": pa.array([True, False, True]),
}


def test_columns_of_parquet_files_keep_their_types(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table(TABLE), path, row_group_size=2)
    source = open_source(path)
    assert source.splits()["train"].num_items == 3
    assert source.features["tags"] == VarLenFeature(bytes)
    assert source.features["pair"] == FixedLenFeature((2,), np.int64)
    found = packed(path, tmp_path / "bucket", num_shards=2, split=None)
    assert found["id"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(found["weight"], np.array([0.5, np.nan, 2], np.float32))
    assert found["word"].tolist() == [b"a", b"b", "ü".encode()]
    assert found["blob"].tolist() == [b"\x00", b"", b"\xff"]
    assert found["tags"].to_dense().tolist() == [[b"x", b"y"], [b"", b""], [b"z", b""]]
    assert found["pair"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found["kind"].tolist() == [b"p", b"q", b"p"]
    assert found["day"].tolist() == [b"2030-01-01", b"2030-01-02", b"2030-01-03"]
    assert found["price"].tolist() == [b"1.50"] * 3
    assert found["ok"].tolist() == [1, 0, 1]


def test_rows_are_read_in_batches(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"x": np.arange(50_000)}), path, row_group_size=10_000)
    items = open_source(path).splits()["train"].items()
    before = pa.total_allocated_bytes()
    assert [next(items).value for _ in range(2)] == [{"x": 0}, {"x": 1}]
    assert pa.total_allocated_bytes() - before < 50_000 * 8
    items.close()  # type: ignore[attr-defined]


def test_a_row_that_lacks_a_value_is_counted_over_all_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [None if row == 4500 else row for row in range(5000)]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match=r"a\.parquet: row 4500 \(counted from 0\) has no value in column 'x'"):
        list(open_source(tmp_path / "a.parquet").splits()["train"].items())


def test_large_rows_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    rows = [np.random.default_rng(number).bytes(1 << 19) for number in range(40)]
    pq.write_table(pa.table({"x": pa.array(rows, pa.binary())}), path)
    part = open_source(path).splits()["train"]
    assert isinstance(part, ParquetTable)
    assert max(batch.num_rows for batch in part._read(path)) <= 8
    assert [item.value["x"] for item in part.items()] == rows


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("x\n1\n\n2,3\n", {}, CorruptDataError, r"a\.csv: line 4 has 2 values, and the first line 1 column; received"),
        ("x,y\n1,2\n,3\n", {}, InvalidInputError, r"a\.csv: line 3 has no value in column 'x'; .*--column x=float"),
        (
            "x\n1\n",
            {"column_types": {"x": "int32"}},
            InvalidInputError,
            r"the type of column 'x' \(column_types\); received 'int32'; allowed: int",
        ),
        ("x\n1\n", {"column_types": {"z": "int"}}, InvalidInputError, "no such column .*; received 'z'; allowed: x"),
        (
            "x\na\n",
            {"column_types": {"x": "int"}},
            CorruptDataError,
            "2: 'a' in column 'x' is not a valid int; .* x=float or text",
        ),
        ("", {}, CorruptDataError, r"a\.csv is empty; allowed: a first line that names"),
        ("x,y\n1,\n2,\n", {}, InvalidInputError, "column 'y' cannot be packed; received 'null'; .*--column NAME=text"),
    ],
)
def test_a_csv_file_that_cannot_be_packed_is_named(
    tmp_path: Path, text: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(error, match=message):
        packed(path, tmp_path / "bucket", **options)


def test_a_parquet_file_that_cannot_be_packed_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    Path(path).write_bytes(b"PAR1 but no more")
    with pytest.raises(CorruptDataError, match=r"a\.parquet: "):
        open_source(path)
    pq.write_table(pa.table({"x": [{"y": 1}]}), path)
    with pytest.raises(InvalidInputError, match=r"column 'x' cannot be packed; received 'struct<y: int64>'"):
        open_source(path)
    pq.write_table(pa.table({"x": [1, None]}), path)
    with pytest.raises(InvalidInputError, match=r"row 1 \(counted from 0\) has no value in column 'x'; .*fill it$"):
        packed(path, tmp_path / "bucket")
    with pytest.raises(InvalidInputError, match=r"types of columns and a delimiter .* apply only to CSV files"):
        open_source(path, column_types={"x": "int"})
    with pytest.raises(MissingInputError, match="no file matches"):
        open_source(str(tmp_path / "none*.parquet"))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InvalidInputError, match=r"pyarrow, which is not installed; run: pip install 'lockstep-train\[tables\]'"
    ):
        open_source(write(tmp_path / "a.csv", CSV))


def test_what_no_record_can_have_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b,a\n1,2,3\n")
    with pytest.raises(
        InvalidInputError, match=r"x.csv has several columns with the same name; received 'a'; name them diff"
    ):
        open_source(path)
    for name, array, message in (
        ("time", pa.array([0], pa.timestamp("us", "No/Where")), "time.parquet: Cannot locate"),
        ("list", pa.array([[1], [2, None]]), r"list.parquet: row 1 \(counted from 0\) lacks a value within column"),
    ):
        pq.write_table(pa.table({"x": array}), tmp_path / f"{name}.parquet")
        with pytest.raises((CorruptDataError, InvalidInputError), match=message):
            packed(str(tmp_path / f"{name}.parquet"), tmp_path / "bucket")
