"""The examples of the page about reading records run as they stand, one after the other."""

import gzip
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from lockstep.data import encode_example, frame
from lockstep.storage import open_bucket

PAGE = Path(__file__).parents[3] / "docs" / "data" / "records.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:

    bucket = open_bucket("memory://page")
    for index in range(2):
        records = [encode_example({"label": number, "words": [1]}) for number in range(300)]
        name = f"set-train-{index:05d}-of-00002.tfrecord.gz"
        bucket.write(name, gzip.compress(b"".join(map(frame, records)), 1))
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block.replace("gs://bucket", "memory://page"), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "100 [0, 1, 2, 3] [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]",
        "[[3, 5], [4, 0]] [2, 1]",
    ]
    sizes = [len(batch["label"]) for batch in islice(names["dataset"].batch(256, batch_fn=names["parse"]), 3)]  # type: ignore[attr-defined]
    assert sizes == [256, 256, 88]
    assert isinstance(names["batch"], dict)
    assert isinstance(names["batch"]["label"], np.ndarray)
