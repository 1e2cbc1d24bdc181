"""What columns contain is parsed as JSON says, and a long text is parsed once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lockstep.service.store.json_texts import LONG, parse_json


@pytest.mark.parametrize(
    "value", [None, 0, "null", [], {"a": [1, None]}, ["x" * LONG], 2**80, 0.1 + 0.2, 5e-324, float("inf"), "\ud800"]
)
def test_a_value_is_what_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


def test_only_a_long_text_is_kept() -> None:
    long, short = json.dumps(["x" * LONG]), json.dumps(["x"])
    assert parse_json(long) is parse_json(long)
    assert parse_json(short) is not parse_json(short)
