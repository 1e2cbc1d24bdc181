"""The filter of a log: Cloud Logging's query language, by the examples of its own page where there are some."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.jobs.logs import LogEntry, Severity, StoredEntry
from lockstep.jobs.logs.filters import LOG_FIELDS, parse_log_filter, quoted

OF_THE_README = (
    'severity>=ERROR AND resource.labels.task_name="worker-replica-1" AND textPayload:"loss" '
    'AND timestamp>="1970-01-01T00:00:01Z"'
)


def _entry(
    text: str = "Loss is 0.5, straße", *, severity: Severity = Severity.ERROR, attempt: int = 1, time_s: float = 1.5
) -> LogEntry:
    stored = StoredEntry(seq=7, time_s=time_s, stream="stderr", severity=severity, text=text)
    return LogEntry(project="local", job="Job_1", replica="worker-replica-1", attempt=attempt, stored=stored)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "-- a comment alone",
        OF_THE_README,
        "severity=error",
        "severity>WARNING severity<=500",
        "severity!=INFO",
        "severity = (ERROR OR INFO)",
        "severity:ERR",
        "severity=ERR",
        "textPayload:loss",
        "textPayload:(LOSS 0.5)",
        'textPayload:(nothing OR "loss")',
        'textPayload:("loss" AND NOT "nothing")',
        "textPayload:(loss -nothing)",
        "textPayload:STRASSE",
        'textPayload="loss IS 0.5, strasse"',
        "textPayload>k textPayload<M",
        'textPayload =~ "^Loss is [0-9.]+"',
        'textPayload=~("nothing" OR "(?i)LOSS")',
        'textPayload !~ "loss"',
        'textPayload=~"\\d\\.\\d"',
        "loss",
        '"loss is"',
        "ERROR",
        "ANDROID OR loss",
        "NOT textPayload:AND",
        "worker-replica-1",
        "job_1 stderr",
        "resource.type=ml_job resource.labels.job_id=job_1 resource.labels.project_id=local",
        "labels.attempt=1 labels.attempt>0 labels.attempt<2",
        "labels.stream=stderr",
        "labels.attempt:*",
        "insertId=001.worker-replica-1.000000000007",
        "insertId>001.worker-replica-1.000000000006",
        'timestamp>"1970-01-01" timestamp<1970-01-02',
        'timestamp="1970-01-01T02:00:01.500+02:00"',
        'timestamp:"1970-01-01T00:00:01.5"',
        "NOT labels.none=x",
        "NOT labels.none:*",
        "-severity=INFO",
        "NOT(severity=INFO)",
        "NOT NOT loss",
        "loss -- but not: nothing\nERROR",
        "(loss)",
        "severity=INFO OR loss",
    ],
)
def test_it_holds(text: str) -> None:
    assert parse_log_filter(text)(_entry()) is True
    if text.strip() and "--" not in text:
        assert parse_log_filter(f"NOT ({text})")(_entry()) is False


@pytest.mark.parametrize(
    "text",
    [
        "severity<ERROR",
        "textPayload:nothing",
        "textPayload=loss",
        "textPayload!=(x OR y) AND textPayload:nothing",
        'textPayload=~"loss"',
        "labels.none=x",
        "labels.none!=x",
        "labels.none:*",
        'labels.none!~"x"',
        "loss nothing",
        "loss AND nothing",
        "and",
        "labels.attempt=0",
        'timestamp>"2026-01-31T12:00:00Z"',
    ],
)
def test_it_does_not_hold(text: str) -> None:
    assert parse_log_filter(text)(_entry()) is False


PAGE = (Path(__file__).parents[3] / "docs" / "logs.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"^\| `(.+?)` \|", PAGE.split("## The filter")[1], re.MULTILINE))
def test_what_the_page_shows_is_a_filter(text: str) -> None:
    assert parse_log_filter(text)(_entry()) in (True, False)


def test_the_page_names_every_field() -> None:
    listed = PAGE.split("- Fields: ")[1].split(". ")[0]
    assert re.findall(r"`(.+?)`", listed) == list(LOG_FIELDS)


@pytest.mark.parametrize("word", range(16))
def test_not_binds_closest_then_or_then_and(word: int) -> None:
    """The example of the language's own page."""
    present = [name for bit, name in enumerate("abcd") if word >> bit & 1]
    entry = LogEntry(
        project="-",
        job="-",
        replica="-",
        attempt=0,
        stored=StoredEntry(
            seq=0, time_s=0.0, stream="-", severity=Severity.INFO, text=" ".join(f"<{n}>" for n in present)
        ),
    )
    a, b, c, d = (name in present for name in "abcd")
    expected = (a or not b) and (not c or d)
    assert parse_log_filter('"<a>" OR NOT "<b>" AND NOT "<c>" OR "<d>"')(entry) is expected
    assert parse_log_filter('"<a>" OR -"<b>" -"<c>" OR "<d>"')(entry) is expected
    assert parse_log_filter('("<a>" OR (NOT "<b>")) AND ((NOT "<c>") OR "<d>")')(entry) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("severty=ERROR", "filter: column 1; received 'severty'; did you mean 'severity'?"),
        ("loss zz=1", "filter: column 6; received 'zz'; allowed: textPayload, severity, timestamp"),
        ("resource.labels.task=x", "filter: column 1; received 'resource.labels.task'; did you mean"),
        ("jsonPayload.step>3", "filter: column 1; received 'jsonPayload.step'; allowed: textPayload"),
        ("severity>=LOUD", "filter: column 11; received 'LOUD'; allowed: DEFAULT, DEBUG, INFO"),
        ("severity>=450", "filter: column 11; received '450'; allowed: DEFAULT, DEBUG, INFO"),
        ("loss\ntimestamp>yesterday", "filter: column 16; received 'yesterday'; allowed: a time such as"),
        ("labels.attempt>x", "filter: column 16; received 'x'; allowed: the number of an attempt"),
        (
            'textPayload=~"(x"',
            "filter: column 14; received '\"(x\"'; allowed: RE2's syntax, which has no look-around; not",
        ),
        ('textPayload=~"(?=x)"', "filter: column 14; received '\"(?=x)\"'; allowed: RE2's syntax"),
        ("textPayload=~x", "filter: column 14; received 'x'; allowed: a regular expression in quotation marks"),
        ('SEARCH("x")', "filter: column 1; received 'SEARCH('; allowed: comparisons and words; functions"),
        ("severity>=", "filter: column 11: it is incomplete; allowed: comparisons such as severity>=ERROR"),
        ("(loss", "filter: column 6: it is incomplete"),
        ("loss)", "filter: column 5: not understood from here; received ')'"),
        ('"loss', "filter: column 1: not understood from here"),
        ("loss OR", "filter: column 8: it is incomplete"),
        ("AND loss", "filter: column 1: not understood from here; received 'AND loss'"),
        ("loss OR AND loss", "filter: column 9: not understood from here"),
        ("textPayload:(a OR OR)", "filter: column 19: not understood from here"),
        ("x" * 2001, "filter is too long; received '2001 characters'; allowed: 2000 characters"),
    ],
)
def test_what_is_not_a_filter_is_refused_with_its_column(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_log_filter(text)
    assert str(caught.value).startswith(message)


def test_no_pattern_takes_longer_than_its_text() -> None:
    holds = parse_log_filter('textPayload=~"(a|a)*(a|aa)*(.*.*.*)*$x"')
    start = time.monotonic()
    assert holds(_entry("a" * 60_000)) is False
    assert time.monotonic() - start < 5, "backtracking would take for ever"


_SIGNS = ("=", "!=", "<=", ">", ":", "=~", "!~", "AND", "OR", "NOT", "-", "--", "(", ")", '"', '"a"', "\\", ",", "*")
_PIECES = st.sampled_from([*LOG_FIELDS, *_SIGNS, "a", "ERROR", "2026-01-31", "1", "f(", " ", "\n"])


def _is_refused_in_one_line(text: str) -> bool:
    try:
        parse_log_filter(text)
    except InvalidInputError as error:
        return "\n" not in str(error)
    return False


@given(text=st.lists(_PIECES | st.text(max_size=3), max_size=12).map("".join))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    if not _is_refused_in_one_line(text):
        assert parse_log_filter(text)(_entry()) in (True, False)


@given(text=st.text())
def test_any_text_can_be_asked_for_in_quotes(text: str) -> None:
    assert parse_log_filter(f"textPayload={quoted(text)}")(_entry(text)) is True
    assert parse_log_filter(f"textPayload:{quoted(text)}")(_entry(f"<{text}>")) is True


@pytest.mark.parametrize(
    ("text", "holds"), [("(" * 900 + "loss" + ")" * 900, True), ("-" + "NOT " * 400 + "loss", False)]
)
def test_deep_nesting_is_no_danger(text: str, *, holds: bool) -> None:
    assert parse_log_filter(text)(_entry()) is holds
