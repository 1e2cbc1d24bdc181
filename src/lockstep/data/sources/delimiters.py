"""The delimiter of a CSV file: parses a given one, or detects it if only one is possible."""

from __future__ import annotations

import csv
import io
from typing import Final

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import open_bucket, split_url

DELIMITERS: Final = (",", ";", "\t", "|")
"""The delimiters that can be detected."""

_TAB_WORDS: Final = ("tab", "\\t")
_HEAD_BYTES: Final = 1 << 16
_MAX_RECORDS: Final = 200


def parse_delimiter(text: str) -> str:
    """Parses a delimiter: one character, or "tab".

    Raises:
        InvalidInputError: the text is not a usable delimiter.
    """
    delimiter = "\t" if text.lower() in _TAB_WORDS else text
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n\0':
        raise InvalidInputError(
            "what separates the columns (delimiter)", received=text, allowed='one character such as "," ";" "|", or tab'
        )
    return delimiter


def display_name(delimiter: str) -> str:
    """Returns a delimiter as messages show it."""
    return "tab" if delimiter == "\t" else f'"{delimiter}"'


def find_delimiter(url: str) -> str:
    """Detects the delimiter of a file from its first 64 KiB: the one that divides all lines into equally many values.

    If there is none, it is the delimiter that divides the first line. If none divides the first line, the file has one
    column, and the delimiter is ",".

    Raises:
        InvalidInputError: several delimiters are possible.
        CorruptDataError: the file is empty.
    """
    bucket_url, key = split_url(url)
    with open_bucket(bucket_url).open(key) as file:
        head = file.read(_HEAD_BYTES + 1)
    text = head[:_HEAD_BYTES].decode("utf-8-sig", "replace")
    if not text.strip("\r\n"):
        raise CorruptDataError(f"{url} is empty", allowed="a first line that names the columns, and rows")
    named: list[str] = []
    even: list[str] = []
    for delimiter in DELIMITERS:
        records = [len(record) for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if record]
        if len(head) > _HEAD_BYTES and len(records) > 1:
            records.pop()  # the last line may be cut off
        if records[0] > 1:
            named.append(delimiter)
            if len(set(records[:_MAX_RECORDS])) == 1:
                even.append(delimiter)
    possible = even or named or [","]
    if len(possible) > 1:
        raise InvalidInputError(
            f"{url}: the delimiter is ambiguous",
            received=f"lines that {' or '.join(map(display_name, possible))} could divide",
            action=f"state it, such as --delimiter '{_typed(possible[0])}'",
        )
    return possible[0]


def _typed(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else delimiter
