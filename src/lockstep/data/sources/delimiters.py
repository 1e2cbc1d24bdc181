"""What separates the columns of a CSV file: said, or found out where only one answer is possible."""

from __future__ import annotations

import csv
import io
from typing import Final

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import open_bucket, split_url

DELIMITERS: Final = (",", ";", "\t", "|")
"""Those that are looked for."""

_TAB_WORDS: Final = ("tab", "\\t")
_HEAD_BYTES: Final = 1 << 16
_MAX_RECORDS: Final = 200


def read_delimiter(text: str) -> str:
    """Reads what somebody says that it is.

    Raises:
        InvalidInputError: it separates no columns.
    """
    delimiter = "\t" if text.lower() in _TAB_WORDS else text
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n\0':
        raise InvalidInputError(
            "what separates the columns (delimiter)", received=text, allowed='one character such as "," ";" "|", or tab'
        )
    return delimiter


def spoken(delimiter: str) -> str:
    """Returns a delimiter as people name it."""
    return "tab" if delimiter == "\t" else f'"{delimiter}"'


def find_delimiter(url: str) -> str:
    """Finds out what separates the columns of a file, by its first 64 KiB: what divides all lines into as many values.

    Where nothing does, it is what divides the first line; where nothing divides that, the file has one column.

    Raises:
        InvalidInputError: several may be meant.
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
            records.pop()  # which may be cut off
        if records[0] > 1:
            named.append(delimiter)
            if len(set(records[:_MAX_RECORDS])) == 1:
                even.append(delimiter)
    possible = even or named or [","]
    if len(possible) > 1:
        raise InvalidInputError(
            f"{url}: what separates the columns cannot be told",
            received=f"lines that {' and '.join(map(spoken, possible))} divide",
            action=f"say which it is, such as --delimiter '{_typed(possible[0])}'",
        )
    return possible[0]


def _typed(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else delimiter
