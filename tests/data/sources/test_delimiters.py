from pathlib import Path
from typing import Any

import pytest

from lockstep.data.sources import open_source
from lockstep.data.sources.delimiters import find_delimiter, parse_delimiter
from lockstep.errors import CorruptDataError, InvalidInputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2,5\n3;4\n", ";"),
        ("a\tb\n1,2\t3\n", "\t"),
        ("a|b\n1|2\n", "|"),
        ('a,b\n"x;y",1\n"p;q;r",2\n', ","),
        ("\ufeffa;b\r\n\r\n1;2\r\n", ";"),
        ("words\nhello, world\n", ","),
        ("a;b\n1;2\n3\n", ";"),
        ("a,b\n1,2\n3;4\n", ","),
        ("a;b\n" + "1;2\n" * 20_000 + "3;4", ";"),
    ],
    ids=["comma", "semicolon", "tab", "pipe", "quoted", "mark", "one-column", "uneven", "uneven-comma", "cut-off"],
)
def test_what_divides_all_lines_alike_separates_the_columns(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "a.csv").write_text(text, "utf-8", newline="")
    assert find_delimiter(str(tmp_path / "a.csv")) == expected


@pytest.mark.parametrize("text", ["a;b,c\n1;2,3\n", "a;b,c\n1\n"], ids=["even", "uneven"])
def test_what_cannot_be_told_has_to_be_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InvalidInputError, match=r"a\.csv: the delimiter is ambiguous; .* --delimiter ','"):
        open_source(tmp_path / "a.csv")
    if text.endswith("3\n"):
        assert list(open_source(tmp_path / "a.csv", delimiter=";").features) == ["a", "b,c"]


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n\n")
    with pytest.raises(CorruptDataError, match=r"a\.csv is empty"):
        find_delimiter(str(tmp_path / "a.csv"))


def test_a_delimiter_is_a_character_or_tab() -> None:
    assert [parse_delimiter(text) for text in (";", "tab", "\\t", "\t", ":")] == [";", "\t", "\t", "\t", ":"]
    for text in ("", ";;", "a", "é", '"', "\n"):
        with pytest.raises(InvalidInputError, match=r"what separates the columns .*; received"):
            parse_delimiter(text)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ";"), ("a.TSV", "\t")])
def test_the_columns_are_those_that_it_separates(tmp_path: Path, name: str, delimiter: str) -> None:
    (tmp_path / name).write_text(f"x{delimiter}y\n1{delimiter}2\n")
    source = open_source(tmp_path / name)
    assert source.name == "a"
    assert [item.value for item in source.splits()["train"].items()] == [{"x": 1, "y": 2}]
    assert source.options == {"delimiter": delimiter}
    said: Any = open_source(tmp_path / name, delimiter=delimiter)
    assert said.fingerprint() == source.fingerprint()
    assert source.notices == [f"columns are separated by {'tab' if delimiter == chr(9) else chr(34) + ';' + chr(34)}"]
