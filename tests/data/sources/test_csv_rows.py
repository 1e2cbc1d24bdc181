"""What CSV's text is made of: nothing that was written is lost in silence, and errors name the file's line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data import FixedLenFeature
from lockstep.data.sources import csv_rows, open_source, rows
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def values(path: str, **options: Any) -> list[list[Any]]:
    return [list(item.value.values()) for item in open_source(path, **options).splits()["train"].items()]


@pytest.mark.parametrize(
    ("texts", "dtype", "expected"),
    [
        (["00042", "10115"], bytes, ["00042", "10115"]),
        (["-007", "1"], bytes, ["-007", "1"]),
        (["0x1F", "0x20"], bytes, ["0x1F", "0x20"]),
        (["01.50", "2"], bytes, ["01.50", "2"]),
        (["12345678901234567890", "5"], bytes, ["12345678901234567890", "5"]),
        (["0", "-0", "10"], np.int64, [0, 0, 10]),
        (["0.5", "1e3", "NA"], np.float32, [0.5, 1000.0, pytest.approx(float("nan"), nan_ok=True)]),
        ([" 7 ", "8"], np.int64, [7, 8]),
        (["true", "False"], np.int64, [True, False]),
        (["2030-01-01T10:00", "2030-01-02T11:30"], bytes, ["2030-01-01T10:00", "2030-01-02T11:30"]),
        (["NA", "x"], bytes, ["NA", "x"]),
    ],
    ids=["zip", "signed", "hex", "decimal", "long", "zero", "float", "spaces", "bool", "time", "text"],
)
def test_a_column_is_numbers_only_where_they_lose_nothing(
    tmp_path: Path, texts: list[str], dtype: Any, expected: list[Any]
) -> None:
    path = write(tmp_path / "a.csv", "n,x\n" + "".join(f"1,{text}\n" for text in texts))
    source = open_source(path)
    assert source.features["x"] == FixedLenFeature((), dtype)
    assert [row[1] for row in values(path)] == expected
    is_told = any("column 'x' is packed as text" in notice for notice in source.notices)
    assert is_told == (texts[0] in ("00042", "-007", "0x1F", "01.50", "12345678901234567890"))


def test_what_a_column_is_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "zip,n\n00042,1\n10115,2\n")
    assert open_source(path).notices[1:] == [
        (
            "column 'zip' is packed as text: '00042' begins with 0, which a number would drop (as numbers: "
            "--column zip=int)"
        )
    ]
    for word, expected in (("int", [42, 10115]), ("float", [42.0, 10115.0]), ("text", ["00042", "10115"])):
        assert [row[0] for row in values(path, column_types={"zip": word})] == expected
        assert open_source(path, column_types={"zip": word}).notices[1:] == []


def test_a_code_behind_the_first_rows_is_no_number_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 1 << 10)
    path = write(tmp_path / "a.csv", "zip\n" + "10115\n" * 1000 + "00042\n")
    with pytest.raises(
        CorruptDataError, match=r"a\.csv: line 1002: '00042' in column 'zip' begins with 0, .*=text, in"
    ):
        values(path)
    assert values(path, column_types={"zip": "text"})[-1] == ["00042"]
    assert values(path, column_types={"zip": "int"})[-1] == [42]
    assert rows.BLOCK_BYTES == 1 << 22


LINES = 'x,y\n1,"two\nlines, and ""quotes"""\n\n2,b\n'


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (
            "3.5,c",
            CorruptDataError,
            "line 6: '3.5' in column 'x' is not a valid int; correct it, or .*: --column x=float or text",
        ),
        (
            "3",
            CorruptDataError,
            "line 6 has 1 value, and the first line 2 columns; received '3'; .* if \",\" is not the delimiter",
        ),
        (",c", InvalidInputError, "line 6 has no value in column 'x'"),
        ("3,\xff", CorruptDataError, "line 6: column 2: .*invalid UTF8 data; write the file in UTF-8"),
    ],
    ids=["number", "uneven", "missing", "encoding"],
)
def test_errors_name_the_line_of_the_file(tmp_path: Path, line: str, error: type[LockstepError], message: str) -> None:
    path = write(tmp_path / "a.csv", LINES.encode() + line.encode("latin-1") + b"\n4,d\n")
    with pytest.raises(error, match=f"a.csv: {message}"):
        values(path, column_types={"x": "int", "y": "text"})


@pytest.mark.parametrize("text", ["1e39", "-1e300", "1e400", "9" * 400])
def test_a_float_that_a_record_cannot_hold_is_named_by_its_line(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.csv", f"x\n1.5\n-inf\n\n{text}\n".encode())
    with pytest.raises(
        CorruptDataError, match=f"a.csv: line 5: '{text}' in column 'x' exceeds the range of 32-bit floats"
    ):
        values(path, column_types={"x": "float"})
    assert values(path, column_types={"x": "text"})[-1] == [text]


def test_the_line_is_that_of_its_own_file(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x\n1\n2\n3\n")
    write(tmp_path / "b.csv", "x\n4\nfive\n")
    with pytest.raises(CorruptDataError, match=r"b\.csv: line 3: 'five' in column 'x' is not a valid int"):
        values(str(tmp_path / "*.csv"))


def test_a_value_too_long_for_a_line_to_be_found_is_named_by_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f"x,y\n1,{'z' * 200_000}\n,b\n")
    with pytest.raises(InvalidInputError, match=r"a\.csv: row 2 after the line of names has no value in column 'x'"):
        values(path)


def test_values_of_several_lines_are_whole_wherever_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 1000)
    expected = [[number, f"a\n\n{'z' * (number % 90)},{number}"] for number in range(400)]
    path = write(tmp_path / "a.csv", "x,y\n" + "".join(f'{number},"{text}"\n' for number, text in expected))
    assert values(path) == expected


def test_truth_values_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x\n1\nFALSE\nyes\n")
    with pytest.raises(CorruptDataError, match=r"line 4: 'yes' in column 'x' is not a valid bool; .*--column x=text"):
        values(path, column_types={"x": "bool"})


def test_a_file_without_rows_or_of_another_encoding_is_told(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=r"a\.csv has no rows after the line of names; received 'x, y'"):
        open_source(write(tmp_path / "a.csv", "x,y\n"))
    source = open_source(write(tmp_path / "b.csv", "x,y\n1,é\n".encode("latin-1")))
    assert source.notices[1:] == ["column 'y' is packed as bytes: it is not UTF-8 text"]
    assert [item.value["y"] for item in source.splits()["train"].items()] == [b"\xe9"]
