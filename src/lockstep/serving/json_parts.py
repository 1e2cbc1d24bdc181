"""Parses a large JSON object in parts, so that other threads can run in between.

Python's decoder blocks all other threads until it returns: half a second for 32 MiB. Here it is called once for each
value of the object, or, if the value is a list, once for each item.
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
    """Parses a document like `json.loads`, but rejects ``NaN`` and ``Infinity``, which are not JSON.

    Args:
        data: the JSON document.

    Raises:
        ValueError: the document is not JSON.
        RecursionError: the document is nested too deeply.
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
    """Returns the value that begins at a position, and the position after it."""
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
