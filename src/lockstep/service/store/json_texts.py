"""Parses the JSON that the database contains.

pydantic's parser takes a fifth of the standard library's time for the short texts that most columns hold. The order for
a gang of a thousand replicas is more than a megabyte of JSON. It is read with its job again and again, and rarely
changes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json

LONG: Final = 1 << 16
"""A text with as many characters is parsed once, as long as it is among the last `NUM_KEPT` of them."""
NUM_KEPT: Final = 32


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text. Of a long text, all callers get the same one: do not change it."""
    if text == "null":  # most columns of most replicas
        return None
    return _parse_long(text) if len(text) >= LONG else _parse(text)


@lru_cache(maxsize=NUM_KEPT)
def _parse_long(text: str) -> Any:
    return _parse(text)


def _parse(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)  # it accepts half of a surrogate pair, which a program may have printed
