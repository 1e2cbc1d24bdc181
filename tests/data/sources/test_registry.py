from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data.sources import open_source
from lockstep.data.sources.transcoding import Transcoding
from lockstep.errors import InvalidInputError, MissingInputError


@pytest.mark.parametrize(
    ("name", "expected"),
    [("My Data (1).npy", "my-data-1"), ("v1.2.npy", "v1.2"), ("---.npy", "data"), ("x.NPY", "x"), ("日本.npy", "data")],
)
def test_a_path_gives_a_name(tmp_path: Path, name: str, expected: str) -> None:
    with open(tmp_path / name, "wb") as file:
        np.save(file, np.arange(3))
    assert open_source(tmp_path / name).name == expected


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (
            "fashion_mnist",
            InvalidInputError,
            "no such data set; received 'fashion_mnist'; .*did you mean 'fashion-mnist'",
        ),
        (
            "{tmp}/nothing",
            MissingInputError,
            "there is no file or folder .*/nothing; allowed: fashion-mnist, digits, a folder",
        ),
        ("pets.zip", MissingInputError, r"there is no file or folder pets\.zip"),
        ("{tmp}/notes.txt", InvalidInputError, "this kind of data set cannot be packed"),
        ("{tmp}/none.npy", MissingInputError, "there is no object"),
    ],
)
def test_what_is_no_source_is_named(tmp_path: Path, source: str, error: type[Exception], message: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(error, match=message):
        open_source(source.format(tmp=tmp_path))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("digits", {"transcoding": Transcoding(size=(2, 2))}, "sizes, codecs and qualities .* are for image files"),
        ("digits", {"key": "x"}, "a column for keys .key. is for tables; received 'digits'"),
        ("{tmp}/x.npy", {"column_types": {"x": "int"}}, "types of columns .* are for CSV files"),
        ("{tmp}/x.npy", {"delimiter": ";"}, "what separates columns .delimiter. is for CSV files"),
        ("{tmp}/x.npy", {"folder": "."}, "a folder .folder. applies only to data sets by name"),
    ],
)
def test_an_option_of_another_kind_is_refused(
    tmp_path: Path, source: str, options: dict[str, Any], message: str
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(InvalidInputError, match=message):
        open_source(source.format(tmp=tmp_path), **options)


def test_sources_of_a_bucket() -> None:
    from lockstep.storage import open_bucket

    open_bucket("memory://registry").write("a/x.csv", b"x\n1\n2\n")
    source = open_source("memory://registry/a/x.csv")
    assert [item.value for item in source.splits()["train"].items()] == [{"x": 1}, {"x": 2}]
