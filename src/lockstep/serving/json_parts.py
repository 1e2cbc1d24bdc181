"""Reads a large JSON object a part at a time, so that other threads run meanwhile.

Python's decoder keeps all other threads waiting until it returns: half a second for 32 MiB. Here it is called for each
value of the object, and for each item of a list that is one.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

_SPACE: Final = re.compile(r"[ \t\n\r]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def load_object(data: bytes) -> object:
    """Returns what `json.loads` does, but for ``NaN`` and its like, which are no JSON.

    Args:
        data: a JSON document.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return json.loads(text, parse_constant=_refuse_constant)
    document: dict[str, object] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return _ended(text, at + 1, document)
    while True:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        document[key], at = _value(text, _skip(text, at + 1))
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return _ended(text, at + 1, document)
        at = _after_comma(text, at)


def _value(text: str, at: int) -> tuple[object, int]:
    """Returns the value that begins at a place, and where it ends."""
    if text[at : at + 1] != "[":
        return _DECODER.raw_decode(text, at)
    items: list[object] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        item, at = _DECODER.raw_decode(text, at)
        items.append(item)
        at = _skip(text, at)
        if text[at : at + 1] == "]":
            return items, at + 1
        at = _after_comma(text, at)


def _after_comma(text: str, at: int) -> int:
    if text[at : at + 1] != ",":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    return _skip(text, at + 1)


def _ended(text: str, at: int, document: dict[str, object]) -> dict[str, object]:
    at = _skip(text, at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return document


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()
