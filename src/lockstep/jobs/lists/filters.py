"""Parses the filters of lists of jobs and operations, such as ``jobId:rnn* AND state:FAILED``, with Lark.

A filter consists of comparisons, joined by AND (or a space), OR, NOT (or a minus) and parentheses. NOT binds most
tightly, then AND, then OR. A comparison is a field of the contract's JSON, an operator and a value:

- ``field:text``: the field contains the text, ignoring case. ``field:text*``: the field starts with the text.
  ``field:*``: the field is set. For a list, the comparison is true if it is true for any item.
- ``field=text``, ``field!=text``: the field is equal to the text, or starts with the text before a final ``*``.
- ``field<value``, and ``<=``, ``>``, ``>=``: the order of times (such as ``createTime``) and numbers.

Dots select the fields of messages and labels: ``labels.owner``, ``trainingInput.scaleTier``. In double quotes, a value
    may contain spaces, and ``*`` is an ordinary character. No part of a filter becomes a regular expression.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Final, cast, final

from lark import Lark, Token

from lockstep.errors import closest
from lockstep.jobs.lists.predicates import (
    AbstractFilterCompiler,
    Join,
    Predicate,
    Program,
    filter_error,
    parse_filter_text,
)
from lockstep.jobs.running.states import JobState

_GRAMMAR: Final = r"""
    start: any_of?
    any_of: all_of ("OR" all_of)*
    all_of: _term ("AND"? _term)*
    _term: comparison | negation | "(" any_of ")"
    negation: ("NOT" | "-") _term
    comparison: FIELD OPERATOR (WORD | QUOTED)

    FIELD: /[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_-]+)*/
    OPERATOR: ":" | "=" | "!=" | "<=" | "<" | ">=" | ">"
    WORD: /[^\s()"]+/
    QUOTED: /"[^"]*"/
    %ignore /\s+/
"""

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_DOCUMENTS: Final = ("labels", "trainingInput")
"""The top-level fields of a job that the database stores as JSON, as the job shows it."""
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]+")
"""The characters that JSON writes unescaped."""

_TIME_STEP_S: Final = 0.01
"""More than the rounding of a time when a resource shows it, in seconds."""

_Resource = Mapping[str, object]
_Program = tuple[Callable[[_Resource], bool] | Join, ...]

_Test = Callable[[object], bool]

_MISSING: Final = object()


@final
@dataclass(frozen=True, kw_only=True)
class _Comparison:
    path: tuple[str, ...]
    test: _Test
    sign: str
    word: str
    is_whole: bool
    """Whether the field is compared with the whole word, rather than with a prefix."""

    def __call__(self, resource: _Resource) -> bool:
        value: object = resource
        for key in self.path:
            value = _member(value, key)
        return self.test(value)


@final
@dataclass(frozen=True, kw_only=True)
class _FilterableFields:
    """The fields that a filter may use for one kind of resource.

    Attributes:
        fields: the allowed beginnings of a field's path.
        times: the fields that are times.
    """

    fields: tuple[str, ...]
    times: tuple[str, ...]

    def has(self, path: tuple[str, ...]) -> bool:
        return any(".".join(path[:length]) in self.fields for length in range(1, len(path) + 1))

    def is_time(self, path: tuple[str, ...]) -> bool:
        return ".".join(path) in self.times


_JOB_TIMES: Final = ("createTime", "startTime", "endTime")
JOB_FIELDS: Final = (
    "jobId",
    "state",
    *_JOB_TIMES,
    "errorMessage",
    "jobPosition",
    "labels",
    "predictionInput",
    "trainingInput",
    "trainingOutput",
)
_JOBS: Final = _FilterableFields(fields=JOB_FIELDS, times=_JOB_TIMES)

_OPERATION_TIMES: Final = ("metadata.createTime", "metadata.endTime")
OPERATION_FIELDS: Final = (
    "name",
    "done",
    "metadata.operationType",
    "metadata.modelName",
    *_OPERATION_TIMES,
    "error.code",
    "error.message",
)
_OPERATIONS: Final = _FilterableFields(fields=OPERATION_FIELDS, times=_OPERATION_TIMES)


MODEL_FIELDS: Final = ("name", "description", "labels", "regions", "defaultVersion.name")
_MODELS: Final = _FilterableFields(fields=MODEL_FIELDS, times=())

VERSION_FIELDS: Final = (
    "name",
    "description",
    "labels",
    "state",
    "createTime",
    "isDefault",
    "lastUseTime",
    "machineType",
    "acceleratorConfig",
    "framework",
    "deploymentUri",
    "errorMessage",
)
_VERSIONS: Final = _FilterableFields(fields=VERSION_FIELDS, times=("createTime", "lastUseTime"))


VERTEX_FIELDS: Final = ("name", "displayName", "display_name", "description", "labels", "createTime", "create_time")
_VERTEX: Final = _FilterableFields(fields=VERTEX_FIELDS, times=("createTime", "create_time"))
_VERTEX_NAMES: Final = {"display_name": "displayName", "create_time": "createTime"}
"""The names of fields in filters of Vertex AI, by those in its JSON."""


def parse_filter(text: str) -> Predicate[_Resource]:
    """Parses the filter of a list of jobs; an empty filter matches every job.

    Raises:
        InvalidInputError: If the filter does not follow the grammar, names an unknown field, or orders values that have
            no order.
    """
    return parse_filter_text(text, parser=_parser(_JOBS), example="jobId:rnn*")


def parse_operation_filter(text: str) -> Predicate[_Resource]:
    """Parses the filter of a list of operations; an empty filter matches every operation.

    Raises:
        InvalidInputError: If the filter does not follow the grammar, names an unknown field, or orders values that have
            no order.
    """
    return parse_filter_text(text, parser=_parser(_OPERATIONS), example="done:false")


def parse_model_filter(text: str) -> Predicate[_Resource]:
    """Parses the filter of a list of models; see `parse_operation_filter`."""
    return parse_filter_text(text, parser=_parser(_MODELS), example="labels.team:vision")


def parse_version_filter(text: str) -> Predicate[_Resource]:
    """Parses the filter of a list of versions; see `parse_operation_filter`."""
    return parse_filter_text(text, parser=_parser(_VERSIONS), example="state:READY")


def parse_vertex_filter(text: str) -> Callable[[_Resource], bool]:
    """Parses the filter of a list of Vertex AI's models or endpoints; see `parse_operation_filter`.

    Fields may have the names of the JSON, or those of Google's clients: ``displayName`` or ``display_name``.
    """
    holds = parse_filter_text(text, parser=_parser(_VERTEX), example='display_name="digits"')
    return lambda resource: holds({**resource, **{name: resource[key] for name, key in _VERTEX_NAMES.items()}})


@final
@dataclass(frozen=True, kw_only=True)
class JobBounds:
    """The conditions that every job that a filter matches fulfils, as far as a database can search for them.

    A job within these bounds need not match: the filter itself decides.

    Attributes:
        job_id: the job's name; None if any name is possible.
        states: the states that the job may be in.
        labels: the labels that the job has, with their values.
        since_s: the earliest creation time, in seconds since 1970 UTC.
        until_s: the latest creation time, in seconds since 1970 UTC.
        texts: texts that the JSON of ``labels`` or ``trainingInput`` contains, ignoring case, by field. This need not
            hold for JSON with escaped characters: some of these, such as the Kelvin sign, are ASCII letters in another
            case.
        fields: the top-level fields of a job that the filter uses.
    """

    job_id: str | None = None
    states: frozenset[JobState] = frozenset(JobState)
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    since_s: float | None = None
    until_s: float | None = None
    texts: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    fields: frozenset[str] = frozenset()


def bounds_of(predicate: Predicate[_Resource]) -> JobBounds:
    """Returns the bounds of a filter that `parse_filter` returned."""
    comparisons = [step for step in predicate.program if isinstance(step, _Comparison)]
    needed = _required_comparisons(predicate.program)
    # Names and labels have only printable characters, and not every database accepts others.
    equal = [c for c in needed if c.sign == "=" and c.is_whole and c.word.isprintable()]
    labelled = [c for c in equal if c.path[0] == "labels" and len(c.path) == 2]
    times = [
        (comparison.sign, time.timestamp())
        for comparison in needed
        if comparison.path == ("createTime",) and (time := _time(comparison.word)) is not None
    ]
    since = [time_s - _TIME_STEP_S for sign, time_s in times if sign in (">", ">=", "=")]
    until = [time_s + _TIME_STEP_S for sign, time_s in times if sign in ("<", "<=", "=")]
    return JobBounds(
        job_id=next((c.word for c in equal if c.path == ("jobId",)), None),
        states=frozenset(state for state in JobState if _may_match(predicate.program, state=state)),
        labels={c.path[1]: c.word for c in labelled},
        since_s=max(since, default=None),
        until_s=min(until, default=None),
        texts=_texts(c for c in needed if c not in labelled),
        fields=frozenset(comparison.path[0] for comparison in comparisons),
    )


def _texts(needed: Iterable[_Comparison]) -> dict[str, frozenset[str]]:
    """Returns by field, for each word, the longest part that JSON writes unescaped, in lower case."""
    found: dict[str, frozenset[str]] = {}
    for comparison in needed:
        name = comparison.path[0]
        if name in _DOCUMENTS and comparison.sign in (":", "="):
            word = comparison.word if comparison.is_whole else comparison.word[:-1]
            plain = _PLAIN.findall(word.casefold())
            if plain:
                found[name] = found.get(name, frozenset()) | {max(plain, key=len)}
    return found


def _required_comparisons(program: _Program) -> list[_Comparison]:
    """Returns the comparisons that are true whenever the filter is: those that only AND joins."""
    results: list[list[_Comparison]] = []
    for step in program:
        if isinstance(step, Join):
            last = results[-step.count :]
            del results[-step.count :]
            results.append([comparison for part in last for comparison in part] if step.kind == "all" else [])
        else:
            results.append([step] if isinstance(step, _Comparison) else [])
    return [comparison for part in results for comparison in part]


def _may_match(program: _Program, *, state: JobState) -> bool:
    """Returns whether a filter may match a job in a state, whatever its other fields are."""
    results: list[bool | None] = []  # None: depends on other fields
    for step in program:
        if isinstance(step, Join):
            last = results[-step.count :]
            del results[-step.count :]
            results.append(_joined_or_open(step.kind, last))
        else:
            about_state = isinstance(step, _Comparison) and step.path == ("state",)
            results.append(step({"state": state.value}) if about_state else None)
    return False not in results


def _joined_or_open(kind: str, results: list[bool | None]) -> bool | None:
    if kind == "not":
        return None if results[0] is None else not results[0]
    decisive = kind == "any"
    if decisive in results:
        return decisive
    return None if None in results else not decisive


@final
class _Compiler(AbstractFilterCompiler):
    def __init__(self, listed: _FilterableFields) -> None:
        super().__init__()
        self._listed = listed

    def comparison(self, items: list[Any]) -> Program:
        field, sign, value = cast("list[Token]", items)
        path = tuple(field.split("."))
        if not self._listed.has(path):
            near = closest(field, self._listed.fields) or closest(path[0], self._listed.fields)
            raise filter_error(field, allowed=None if near else self._listed.fields, action=near)
        word, starts = _read_word(value)
        return [
            _Comparison(
                path=path,
                test=_test(path, sign, value, listed=self._listed),
                sign=str(sign),
                word=word,
                is_whole=not starts,
            )
        ]


@cache
def _parser(listed: _FilterableFields) -> Lark:
    return Lark(_GRAMMAR, parser="lalr", transformer=_Compiler(listed))


def _member(value: object, key: str) -> object:
    return cast("Mapping[str, object]", value).get(key, _MISSING) if isinstance(value, Mapping) else _MISSING


def _read_word(value: Token) -> tuple[str, bool]:
    """Returns a value without its quotes, and whether it is a prefix."""
    if value.type == "QUOTED":
        return value[1:-1], False
    return str(value), value.endswith("*")


def _test(path: tuple[str, ...], sign: Token, value: Token, *, listed: _FilterableFields) -> _Test:
    word, starts = _read_word(value)
    if listed.is_time(path) and sign != ":":
        return _time_test(str(sign), value, word)
    if sign in _ORDERS:
        return _number_test(str(sign), value, word, times=listed.times)
    word = word[:-1] if starts else word
    if value.type != "QUOTED" and "*" in word:
        raise filter_error(value, allowed="* at the end only", action="put a value that has a * in quotes")
    if sign == ":":
        return _of_items(_has(word.casefold(), starts=starts))
    equal = _equals(word, starts=starts)
    return (lambda found: not equal(found)) if sign == "!=" else equal


def _is_set(found: object) -> bool:
    return found is not _MISSING and found is not None and found != ""


def _text(found: object) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found) if isinstance(found, str | int | float) else ""


def _has(word: str, *, starts: bool) -> _Test:
    if starts and not word:
        return _is_set
    if starts:
        return lambda found: _text(found).casefold().startswith(word)
    return lambda found: _is_set(found) and word in _text(found).casefold()


def _of_items(test: _Test) -> _Test:
    return lambda found: any(map(test, cast("list[object]", found))) if isinstance(found, list) else test(found)


def _equals(word: str, *, starts: bool) -> _Test:
    if starts:
        return lambda found: _is_set(found) and _text(found).startswith(word)
    return lambda found: found is not _MISSING and _text(found) == word


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _number_test(sign: str, value: Token, word: str, *, times: tuple[str, ...]) -> _Test:
    limit = _number(word)
    if limit is None:
        raise filter_error(value, allowed=f"a number after {sign}, or a time for {', '.join(times)}")
    compare = _ORDERS[sign]

    def test(found: object) -> bool:
        number = _number(_text(found))
        return number is not None and compare(number, limit)

    return test


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _time_test(sign: str, value: Token, word: str) -> _Test:
    limit = _time(word)
    if limit is None:
        raise filter_error(
            value, allowed='a time such as 2026-01-31 or 2026-01-31T12:00:00Z after the sign; ":" takes text'
        )
    compare = {**_ORDERS, "=": operator.eq, "!=": operator.ne}[sign]

    def test(found: object) -> bool:
        time = _time(_text(found))
        # A job that has not started has no start time: it is equal to none.
        return sign == "!=" if time is None else compare(time, limit)

    return test
