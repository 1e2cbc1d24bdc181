"""Parses the filter of a log, in Cloud Logging's query language, with Lark into a predicate.

A filter consists of comparisons and words, joined by NOT (or a minus), OR and AND (or nothing). As in Cloud Logging,
NOT binds most tightly, then OR, then AND: ``"a" OR NOT "b" AND NOT "c" OR "d"`` is ``("a" OR (NOT "b")) AND ((NOT "c")
OR "d")``. In the filter of a list of jobs, AND binds more tightly than OR, as the contract defines it.

- ``field=value``, ``!=``, ``<``, ``<=``, ``>``, ``>=``: compares severities and times by their order, attempts by their
  number, and text by its characters, ignoring case.
- ``field:text``: the field contains the text, ignoring case. ``field:*``: the field exists.
- ``field=~"pattern"``, ``!~``: the field contains (or does not contain) a match of an RE2 regular expression, which
  respects case.
- ``field:("a" OR "b")``: the field and the operator apply to each value.
- A value without a field: the entry's text, severity or labels contain it, ignoring case.

If an entry does not have a label, every comparison of the label is false, even ``!=``, and NOT of it is true. ``--``
begins a comment, which ends with the line. The language is described at
https://cloud.google.com/logging/docs/view/logging-query-language. Parts that are not supported (functions, fields of
``jsonPayload`` and ``httpRequest``) are rejected by name.
"""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, cast, final

from lark import Lark, Token

from lockstep.errors import InvalidInputError, closest
from lockstep.jobs.lists.predicates import (
    AbstractFilterCompiler,
    Join,
    Predicate,
    Program,
    filter_error,
    parse_filter_text,
)
from lockstep.jobs.logs.entries import RESOURCE_TYPE, LogEntry
from lockstep.jobs.logs.patterns import compile_pattern
from lockstep.jobs.logs.severities import Severity, severity_named

_GRAMMAR: Final = r"""
    start: all_of?
    all_of: any_of ("AND"? any_of)*
    any_of: _term ("OR" _term)*
    _term: comparison | anywhere | function | negation | "(" all_of ")"
    negation: ("NOT" | "-") _term
    comparison: TEXT OPERATOR _value
    anywhere: TEXT | QUOTED
    function: FUNCTION

    _value: value | "(" all_values ")"
    value: VALUE | QUOTED
    all_values: any_value ("AND"? any_value)* -> all_of
    any_value: _value_term ("OR" _value_term)* -> any_of
    _value_term: listed | no_value | "(" all_values ")"
    no_value: ("NOT" | "-") _value_term -> negation
    listed: TEXT -> value
        | QUOTED -> value

    FUNCTION.2: /(?!(?:AND|OR|NOT)\()[A-Za-z_][A-Za-z0-9_]*\(/
    TEXT: /(?!(?:AND|OR|NOT)(?![^\s()"<>=!~:,]))[^\s()"<>=!~:,-][^\s()"<>=!~:,]*/
    OPERATOR: "=~" | "!~" | ":" | "=" | "!=" | "<=" | "<" | ">=" | ">"
    VALUE: /[^\s()"]+/
    QUOTED: /"(?:[^"\\]|\\.)*"/s
    COMMENT.3: /--[^\n]*/
    %ignore /\s+/
    %ignore COMMENT
"""

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_Test = Callable[[LogEntry], bool]

_TEXTS: Final[Mapping[str, Callable[[LogEntry], str]]] = {
    "textPayload": lambda entry: entry.stored.text,
    "severity": lambda entry: entry.stored.severity.name,
    "timestamp": lambda entry: entry.timestamp,
    "insertId": lambda entry: entry.insert_id,
    "resource.type": lambda entry: RESOURCE_TYPE,
    "resource.labels.task_name": lambda entry: entry.replica,
    "resource.labels.job_id": lambda entry: entry.job,
    "resource.labels.project_id": lambda entry: entry.project,
    "labels.attempt": lambda entry: str(entry.attempt),
    "labels.stream": lambda entry: entry.stored.stream,
}
LOG_FIELDS: Final = tuple(_TEXTS)
"""The fields that a filter can use; no entry has ``labels`` other than these."""

_ESCAPE: Final = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(["\\nrt]))')
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_ATTEMPT: Final = re.compile(r"[0-9]{1,9}")


def parse_log_filter(text: str) -> Predicate[LogEntry]:
    """Parses the filter of a log; an empty filter matches every entry.

    Raises:
        InvalidInputError: If the filter does not follow the grammar, names an unknown field, or compares a field with
            an impossible value.
    """
    return parse_filter_text(text, parser=_parser(), example='severity>=ERROR or textPayload:"loss"')


def quoted(text: str) -> str:
    """Returns a text as a quoted value of a filter."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@final
class _Compiler(AbstractFilterCompiler):
    def value(self, items: list[Token]) -> Program:
        return list(items)

    def comparison(self, items: list[Any]) -> Program:
        field, sign = cast("list[Token]", items[:2])
        steps = cast("Program", items[2])
        return [step if isinstance(step, Join) else _test(field, str(sign), step) for step in steps]

    def anywhere(self, items: list[Token]) -> Program:
        word = _folded(_unquoted(items[0]))

        def occurs(entry: LogEntry) -> bool:
            return any(word in text for text in _searched(entry))

        return [occurs]

    def function(self, items: list[Token]) -> Program:
        raise filter_error(
            items[0], allowed="comparisons and words", action="functions of the query language are not supported"
        )


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", transformer=_Compiler())


def _folded(text: str) -> str:
    """Returns a text in the form for comparisons, without differences of case or of Unicode compatibility."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _searched(entry: LogEntry) -> tuple[str, ...]:
    stored = entry.stored
    return (
        _folded(stored.text),
        stored.severity.name.lower(),
        entry.replica,
        entry.job.lower(),
        entry.project,
        stored.stream,
        RESOURCE_TYPE,
    )


def _unquoted(token: Token, *, pattern: bool = False) -> str:
    """Returns a value's text. In a pattern, only escaped quotation marks are unescaped: RE2 handles the rest."""
    if token.type != "QUOTED":
        return str(token)
    inner = token[1:-1]
    if pattern:
        return inner.replace('\\"', '"')
    return _ESCAPE.sub(lambda found: _ESCAPED[found[3]] if found[3] else chr(int(found[1] or found[2], 16)), inner)


def _test(field: Token, sign: str, value: Token) -> _Test:
    name = str(field)
    get = _TEXTS.get(name)
    if get is None:
        if name.startswith("labels.") and len(name) > len("labels."):
            return lambda entry: False
        near = closest(name, LOG_FIELDS)
        raise filter_error(field, allowed=None if near else LOG_FIELDS, action=near)
    if sign in ("=~", "!~"):
        return _pattern_test(get, sign, value)
    if sign == ":":
        word = _folded(_unquoted(value))
        return (lambda entry: True) if value == "*" else lambda entry: word in _folded(get(entry))
    compare = _ORDERS[sign]
    if name == "severity":
        severity = _severity(value)
        return lambda entry: compare(entry.stored.severity, severity)
    if name == "timestamp":
        time_s = _time_s(value)
        return lambda entry: compare(entry.stored.time_s, time_s)
    if name == "labels.attempt":
        attempt = _attempt(value)
        return lambda entry: compare(entry.attempt, attempt)
    text = _folded(_unquoted(value))
    return lambda entry: compare(_folded(get(entry)), text)


def _pattern_test(get: Callable[[LogEntry], str], sign: str, value: Token) -> _Test:
    if value.type != "QUOTED":
        raise filter_error(value, allowed=f"a regular expression in quotation marks after {sign}")
    try:
        occurs = compile_pattern(_unquoted(value, pattern=True))
    except InvalidInputError as error:
        raise filter_error(value, allowed=error.allowed, action=error.what) from None
    if sign == "=~":
        return lambda entry: occurs(get(entry))
    return lambda entry: not occurs(get(entry))


def _severity(value: Token) -> Severity:
    word = _unquoted(value)
    severity = severity_named(word)
    if severity is None and word.isascii() and word.isdecimal() and int(word) in Severity.__members__.values():
        severity = Severity(int(word))
    if severity is None:
        names = tuple(Severity.__members__)
        raise filter_error(value, allowed=names, action=closest(word.upper(), names))
    return severity


def _time_s(value: Token) -> float:
    try:
        time = datetime.fromisoformat(_unquoted(value))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise filter_error(value, allowed='a time such as "2026-01-31" or "2026-01-31T12:00:00Z"') from None


def _attempt(value: Token) -> int:
    word = _unquoted(value)
    if not _ATTEMPT.fullmatch(word):
        raise filter_error(value, allowed="the number of an attempt, from 0")
    return int(word)
