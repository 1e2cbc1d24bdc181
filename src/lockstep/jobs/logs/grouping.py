"""Groups the lines of a stream into entries: a traceback, a Python warning or the stacks of a crash is one entry.

Each line is classified as it arrives, without waiting for the next one: it begins an entry, or continues the entry of
    the line before. No line is therefore held back. Whoever stores the entries may end an entry at any time; the lines
    that follow then form an entry of the same severity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, final

from lockstep.jobs.logs.severities import Severity, is_python_warning, severity_named, severity_of

PAUSE_S: Final = 1.0
"""The pause in seconds after which a line never continues an earlier entry."""

MESSAGE_LINES: Final = 40
"""The maximum number of lines of an exception's message, in addition to the first."""

_PREFIX_CHARS: Final = 200

_HEADER: Final = "Traceback (most recent call last):"
_BEGINNINGS: Final = ("Exception in thread ", "Exception ignored in", "Process ", '  File "')
_BEGINNING: Final = re.compile(
    r"Exception in thread .*:$|Exception ignored in.*:|Process [\w-]*(?:Process|Worker)-\d+(?::\d+)*:$"
    r'|  File ".+", line \d+$'  # of a SyntaxError, which has no other first line
)
_CHAINS: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FATAL: Final = "Fatal Python error: "
_FATAL_LINE: Final = re.compile(
    r"$|  |(?:Current thread|Thread|Stack) .*most recent call first\):$|Python runtime state: |Extension modules: "
    r"|Current thread's C stack trace"
)
_GROUP: Final = re.compile(r"\s*\+ Exception Group $")
_GROUP_LINE: Final = re.compile(r"\s+[|+]")
_EXCEPTION: Final = re.compile(r"([A-Za-z_][\w.<>]*)(?:: |:?$)")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LineClass:
    """The classification of a line.

    Attributes:
        severity: the severity of the line's entry.
        continues: whether the line continues the entry of the line before it in its stream.
        open: whether the next line may continue the entry.
    """

    severity: Severity = Severity.DEFAULT
    continues: bool = False
    open: bool = False


ORDINARY: Final = LineClass()
"""An ordinary line: an entry of its own, without an indicated severity."""

_ALONE: Final = {severity: LineClass(severity=severity) for severity in Severity}
_BEGINS: Final = LineClass(severity=Severity.ERROR, open=True)
_CONTINUES: Final = LineClass(severity=Severity.ERROR, continues=True, open=True)
_IS_FATAL: Final = LineClass(severity=Severity.CRITICAL, open=True)
_STAYS_FATAL: Final = LineClass(severity=Severity.CRITICAL, continues=True, open=True)
_WARNS: Final = LineClass(severity=Severity.WARNING, open=True)
_WARNS_AT: Final = LineClass(severity=Severity.WARNING, continues=True)


class _State(Enum):
    OUTSIDE = auto()
    BEFORE = auto()
    """A line has announced a traceback."""
    FRAMES = auto()
    GROUP = auto()
    """Inside an exception group, whose lines have bars before them."""
    MESSAGE = auto()
    """The line with the exception's name was read; its message may continue, and another traceback may follow."""
    FATAL = auto()
    """Inside the stacks of the threads, which Python prints on a fatal error."""
    WARNED = auto()
    """A Python warning was read; its source line may follow."""


@final
class EntryGrouper:
    """Classifies the lines of one stream, in order.

    Args:
        whole_messages: whether unmarked lines right after a traceback belong to its exception's message. On standard
            error they do; on standard output, they may be unrelated output of the program.
    """

    def __init__(self, *, whole_messages: bool) -> None:
        self._whole_messages = whole_messages
        self._state = _State.OUTSIDE
        self._prefix = ""
        self._time_s = 0.0
        self._num_message_lines = 0
        self._chained = False

    def classify(self, line: str, *, now_s: float) -> LineClass:
        """Classifies the next line.

        Args:
            line: the line, without its line feed.
            now_s: the time of a monotonic clock, in seconds.
        """
        if self._state is not _State.OUTSIDE:
            late = now_s - self._time_s > PAUSE_S
            self._time_s = now_s
            if not late and (line_class := self._inside(line)) is not None:
                return line_class
            self._state = _State.OUTSIDE
        return self._outside(line, now_s)

    def _outside(self, line: str, now_s: float) -> LineClass:
        if line.endswith(_HEADER) and len(line) < _PREFIX_CHARS:
            self._time_s = now_s
            self._begin(line)
            return _BEGINS
        if line.startswith(_BEGINNINGS) and _BEGINNING.match(line):
            self._time_s = now_s
            self._prefix = ""
            self._state = _State.FRAMES if line.startswith(" ") else _State.BEFORE
            return _BEGINS
        if line.startswith(_FATAL):
            self._time_s = now_s
            self._state = _State.FATAL
            return _IS_FATAL
        severity = severity_of(line)
        if severity is Severity.WARNING and is_python_warning(line):
            self._time_s = now_s
            self._state = _State.WARNED
            return _WARNS
        return _ALONE[severity]

    def _begin(self, line: str) -> None:
        before = line.removesuffix(_HEADER)
        group = _GROUP.search(before)
        self._prefix = before[: group.start()] if group else before
        self._state = _State.GROUP if group else _State.FRAMES

    def _inside(self, line: str) -> LineClass | None:
        """Classifies a line inside an unfinished entry; returns None if the line does not belong to it."""
        if self._state is _State.WARNED:
            self._state = _State.OUTSIDE
            return _WARNS_AT if line.startswith("  ") else None
        if self._state is _State.FATAL:
            return _STAYS_FATAL if _FATAL_LINE.match(line) else None
        if self._state is _State.BEFORE:
            if not line.endswith(_HEADER):
                return None
            self._begin(line)
            return _CONTINUES
        if not line.startswith(self._prefix.rstrip()):
            return None
        body = line[len(self._prefix) :]
        if self._state is _State.FRAMES:
            return self._in_frames(body)
        if self._state is _State.GROUP:
            if _GROUP_LINE.match(body):
                return _CONTINUES
            self._state = _State.MESSAGE
            self._num_message_lines = MESSAGE_LINES
            self._chained = False
        return self._after_exception(line, body)

    def _in_frames(self, body: str) -> LineClass | None:
        if body.startswith((" ", "\t")):
            return _CONTINUES
        named = _EXCEPTION.match(body)
        if named is None or severity_named(named[1]) is not None:  # a log line of another thread
            return None
        self._state = _State.MESSAGE
        self._num_message_lines = 0
        self._chained = False
        return _CONTINUES

    def _after_exception(self, line: str, body: str) -> LineClass | None:
        if not body:
            return _CONTINUES
        if line.endswith(_HEADER):
            if not self._chained:
                return None
            self._begin(line)
            return _CONTINUES
        self._chained = body in _CHAINS
        if self._chained:
            return _CONTINUES
        self._num_message_lines += 1
        if not self._whole_messages or self._num_message_lines > MESSAGE_LINES:
            return None
        return _CONTINUES if severity_of(body) is Severity.DEFAULT else None
