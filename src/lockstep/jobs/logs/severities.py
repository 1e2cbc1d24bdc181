"""Defines severities by Cloud Logging's names, and detects the severity of a line of output.

It recognizes the formats of Python's logging and warnings, absl and glog, XLA's C++ lines, JSON lines, and a level in
brackets, between bars or before a colon. Any other line has DEFAULT, whichever stream it came from: much of what is
written to standard error is not an error.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from typing import Any, Final, cast, final


@final
class Severity(IntEnum):
    """The severity of an entry: Cloud Logging's ``LogSeverity``, with its numbers."""

    DEFAULT = 0
    DEBUG = 100
    INFO = 200
    NOTICE = 300
    WARNING = 400
    ERROR = 500
    CRITICAL = 600
    ALERT = 700
    EMERGENCY = 800


_OTHER_NAMES: Final = {
    "TRACE": Severity.DEBUG,
    "VERBOSE": Severity.DEBUG,
    "WARN": Severity.WARNING,
    "ERR": Severity.ERROR,
    "CRIT": Severity.CRITICAL,
    "FATAL": Severity.CRITICAL,
    "PANIC": Severity.EMERGENCY,
    "EMERG": Severity.EMERGENCY,
}
_BY_NAME: Final = {**Severity.__members__, **_OTHER_NAMES}
_BY_LETTER: Final = {
    "I": Severity.INFO,
    "W": Severity.WARNING,
    "E": Severity.ERROR,
    "F": Severity.CRITICAL,
}
_HEAD_CHARS: Final = 120
"""The number of characters at the beginning of a line that are searched for its severity."""

_PATH_CHARS: Final = 500
"""The number of characters of a Python warning, which begins with a path, that are searched for its category."""

_WORD: Final = "TRACE|DEBUG|VERBOSE|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|ALERT|EMERGENCY"
_TIME: Final = r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d[^\s\]]*"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_RANK: Final = re.compile(r"\[rank\d+\]: ?")
_GLOG: Final = re.compile(r"\[?([IWEF])\d{4} ")
_XLA: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) ")
_AFTER_TIME: Final = re.compile(rf"\[?{_TIME}\]?,?\s+(?:\S+\s+)?\[?({_WORD})\b")
_AT_START: Final = re.compile(rf"({_WORD})(?:\s*[:|]|\s+-\s|\s\s|\t)")
_MARKED: Final = re.compile(rf"(?:[\[<|]\s*|\s)({_WORD})(?=\s*[\]>|]|:|\s+-\s)")
_BRACKETED: Final = re.compile(rf"\[({_WORD})\s*\]", re.IGNORECASE)
_CAPITALS: Final = re.compile("[A-Z]{4}")
_LOGFMT: Final = re.compile(r"(?:^|\s)(?:level|lvl)=\"?([A-Za-z]+)")
_WARNING: Final = re.compile(r"\S.*:\d+: (?:\w+\.)*\w*Warning: ")
_JSON_KEYS: Final = ("severity", "level", "levelname", "lvl")


def severity_named(name: str) -> Severity | None:
    """Returns the severity with a name, ignoring case, such as ``warning`` or ``WARN``; None for an unknown name."""
    return _BY_NAME.get(name.upper())


def is_python_warning(line: str) -> bool:
    """Returns whether a line is the first line of a Python warning, such as ``train.py:3: UserWarning: ...``."""
    head = line[:_PATH_CHARS]
    return "Warning: " in head and _WARNING.match(head) is not None


def severity_of(line: str) -> Severity:
    """Returns the severity that a line of output indicates; DEFAULT if it indicates none. Takes microseconds.

    Args:
        line: one line, without its line feed.
    """
    if not line:
        return Severity.DEFAULT
    head = line[:_HEAD_CHARS]
    if "\x1b" in head:
        head = _COLOUR.sub("", head)
    if head.startswith("[rank"):
        head = _RANK.sub("", head, count=1)
    first = head[:1]
    if first == "{":
        return _of_json(line)
    if (first in "IWEF[" and (found := _GLOG.match(head))) or (first.isdigit() and (found := _XLA.match(head))):
        return _BY_LETTER[found[1]]
    found = _word_in(head, first)
    if found is not None:
        return _BY_NAME.get(found[1].upper(), Severity.DEFAULT)
    if is_python_warning(line):
        return Severity.WARNING
    return Severity.CRITICAL if head.startswith("Fatal Python error: ") else Severity.DEFAULT


def _word_in(head: str, first: str) -> re.Match[str] | None:
    if "[" in head and (found := _BRACKETED.search(head)):
        return found
    if "l=" in head and (found := _LOGFMT.search(head)):
        return found
    if not _CAPITALS.search(head):
        return None
    if (first.isdigit() or first == "[") and (found := _AFTER_TIME.match(head)):
        return found
    return _AT_START.match(head) or _MARKED.search(head)


def _of_json(line: str) -> Severity:
    """Returns the severity of a structured log line, such as ``{"severity": "ERROR", "message": "..."}``."""
    if not line.rstrip().endswith("}"):
        return Severity.DEFAULT
    try:
        document = cast("dict[str, Any]", json.loads(line))
    except (ValueError, RecursionError):
        return Severity.DEFAULT
    for key in _JSON_KEYS:
        value = document.get(key)
        if isinstance(value, str) and (severity := severity_named(value)) is not None:
            return severity
        # Under other keys, numbers mean one thing to Python's logging and another to others. Cloud Logging's are
        # unambiguous.
        if key == "severity" and type(value) is int and value in Severity.__members__.values():
            return Severity(value)
    return Severity.DEFAULT
