"""The filters of lists of jobs and of operations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.jobs.lists.filters import (
    JOB_FIELDS,
    MODEL_FIELDS,
    OPERATION_FIELDS,
    VERSION_FIELDS,
    JobBounds,
    bounds_of,
    parse_filter,
    parse_operation_filter,
)
from lockstep.jobs.lists.predicates import MAX_FILTER_LENGTH
from lockstep.jobs.running.states import JobState

JOB = {
    "jobId": "rnn_7",
    "state": "FAILED",
    "createTime": "2026-01-31T12:00:00.5Z",
    "labels": {"owner": "ann", "x-y": "1"},
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "workerCount": "3",
        "useChiefInTfConfig": True,
        "args": ["--epochs=10", "--cache"],
    },
    "trainingOutput": {"consumedMLUnits": 1.79},
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "jobId:rnn* AND state:FAILED",
        "jobId:rnn* state:failed",
        "jobId=rnn_7",
        "jobId=rnn*",
        'jobId="rnn_7"',
        "jobId:NN_",
        "jobId:x OR state:FAILED AND jobId:rnn",
        "(jobId:x OR state:FAILED) AND jobId:rnn",
        "state:FAILED AND jobId:rnn OR jobId:x",
        "NOT state:QUEUED",
        "-state:QUEUED -jobId:x",
        "NOT (state:QUEUED OR jobId:x)",
        "NOT NOT state:FAILED",
        "state!=QUEUED",
        "labels.owner:*",
        "labels.x-y=1",
        "NOT labels.none:*",
        "labels.none!=ann",
        "createTime>=2026-01-31",
        "createTime>2026-01-31T13:00:00+02:00",
        "createTime<=2026-01-31T12:00:00.500Z",
        "createTime=2026-01-31T12:00:00.5Z",
        "createTime:2026-01*",
        "startTime!=2026-01-31",
        "NOT startTime>2026-01-31",
        "trainingInput.workerCount>2 trainingInput.workerCount<10",
        "trainingInput.useChiefInTfConfig=true",
        "trainingInput.args:EPOCHS trainingInput.args:--c* trainingInput.args:*",
        "trainingOutput.consumedMLUnits>=1.79",
    ],
)
def test_the_job_is_in_the_list(text: str) -> None:
    assert parse_filter(text)(JOB) is True
    if text.strip():
        assert parse_filter(f"NOT ({text})")(JOB) is False


@pytest.mark.parametrize(
    "text",
    [
        "state=FAIL",
        "state=failed",
        'jobId="rnn*"',
        "jobId:AND",
        "labels.none:*",
        "labels.owner.deeper:*",
        "trainingInput.workerCount>3",
        "jobId:x OR jobId:y OR jobId:z",
        "state:FAILED AND jobId:x",
        "startTime=2026-01-31",
        "trainingInput.scaleTier>3",
        "trainingInput.args:no-such-flag",
        "trainingInput.args:cache*",
        'trainingInput.args:"=10, --c"',
    ],
)
def test_the_job_is_not_in_the_list(text: str) -> None:
    assert parse_filter(text)(JOB) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobid:a", "filter: column 1; received 'jobid'; did you mean 'jobId'?"),
        ("jobId:a zz:b", "filter: column 9; received 'zz'; allowed: jobId, state, createTime"),
        ("jobId:", "filter: column 7: it is incomplete; allowed: comparisons such as"),
        ("(jobId:a", "filter: column 9: it is incomplete; allowed: comparisons such as"),
        ("jobId:a)", "filter: column 8: not understood from here; received ')'; allowed: comparisons such as"),
        ("jobId:a & b", "filter: column 9: not understood from here; received '& b'; allowed: comparisons such as"),
        ("jobId:a AND OR", "filter: column 15: it is incomplete"),
        ("jobId:a*b", "filter: column 7; received 'a*b'; allowed: * at the end only"),
        ("labels.owner:*a", "filter: column 14; received '*a'; allowed: * at the end only"),
        ("state<x", "filter: column 7; received 'x'; allowed: a number after <"),
        ("trainingInput.workerCount>nan", "filter: column 27; received 'nan'; allowed: a number after >"),
        ("createTime>yesterday", "filter: column 12; received 'yesterday'; allowed: a time such as 2026-01-31"),
        ("x" * (MAX_FILTER_LENGTH + 1), "filter is too long; received '2001 characters'; allowed: 2000 characters"),
    ],
)
def test_what_is_not_a_filter_is_refused_with_its_column(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_filter(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("(" * 990 + "jobId:a" + ")" * 990, False),
        ("-" * 1990 + "jobId:a", False),
        ("-" * 1991 + "jobId:a", True),
        ("-(" * 660 + "jobId:a" + ")" * 660, False),
        ("jobId:a " * 249, False),
    ],
)
def test_deep_nesting_is_no_danger(text: str, *, holds: bool) -> None:
    assert parse_filter(text)(JOB) is holds


_PIECES = st.sampled_from(
    [*JOB_FIELDS, ":", "=", "!=", "<=", ">", "AND", "OR", "NOT", "-", "(", ")", '"', "*", "a", " ", "\n"]
)


def _is_refused_in_one_line(text: str) -> bool:
    try:
        parse_filter(text)(JOB)
    except InvalidInputError as error:
        return "\n" not in str(error)
    return False


@given(text=st.lists(_PIECES | st.text(max_size=3), max_size=12).map("".join))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    if not _is_refused_in_one_line(text):
        assert parse_filter(text)(JOB) in (True, False)


@given(word=st.text(min_size=1).filter(lambda word: '"' not in word))
def test_any_value_can_be_asked_for_in_quotes(word: str) -> None:
    assert parse_filter(f'jobId="{word}"')({"jobId": word}) is True


OPERATION = {
    "name": "projects/p/operations/create_version_1",
    "done": True,
    "metadata": {"operationType": "CREATE_VERSION", "createTime": "2026-01-31T12:00:00.5Z"},
    "error": {"code": 1, "message": "cancelled by ann"},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("done:true", True),
        ("done=false", False),
        ("name:create_version", True),
        ("metadata.operationType=DELETE_VERSION", False),
        ("metadata.createTime>=2026-01-31", True),
        ("metadata.createTime>=2026-02-01", False),
        ("metadata.endTime>2026-01-01", False),
        ("error.code<=1 -error.message:bob", True),
    ],
)
def test_a_filter_of_operations(text: str, holds: bool) -> None:
    assert parse_operation_filter(text)(OPERATION) is holds


@pytest.mark.parametrize(
    "text", ["jobId:x", "metadata:x", "metadata.version.name:v1", "error:x", "done>x", "done<true"]
)
def test_what_operations_have_not_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^filter: column"):
        parse_operation_filter(text)


@pytest.mark.parametrize(
    ("kind", "fields"), [("operations", OPERATION_FIELDS), ("models", MODEL_FIELDS), ("versions", VERSION_FIELDS)]
)
def test_the_page_lists_the_fields(kind: str, fields: tuple[str, ...]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "contract.md").read_text("utf-8")
    (listed,) = re.findall(rf"Fields of {kind}: (.+?)\.\n", page, re.DOTALL)
    assert re.findall(r"`(.+?)`", listed) == list(fields)


EVERY_STATE = frozenset(JobState)


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("state:FAILED", {JobState.FAILED}),
        ("state:ing", {JobState.PREPARING, JobState.RUNNING, JobState.CANCELLING}),
        ("state=FAILED OR state=QUEUED", {JobState.FAILED, JobState.QUEUED}),
        ("state=FAILED AND state=QUEUED", set()),
        ("state=FAILED AND jobId:x", {JobState.FAILED}),
        ("state=FAILED OR jobId:x", EVERY_STATE),
        ("NOT (state=FAILED OR jobId:x)", EVERY_STATE - {JobState.FAILED}),
        ("NOT (state=FAILED AND jobId:x)", EVERY_STATE),
        ("NOT state=FAILED", EVERY_STATE - {JobState.FAILED}),
        ("state=nothing", set()),
        ("jobId:x", EVERY_STATE),
        ("", EVERY_STATE),
    ],
)
def test_a_filter_bounds_the_states(text: str, states: set[JobState]) -> None:
    assert bounds_of(parse_filter(text)).states == states


NOON_S = 1769860800.0


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("", JobBounds()),
        ("labels.owner=ann", JobBounds(labels={"owner": "ann"}, fields=frozenset({"labels"}))),
        ('labels.owner="a*"', JobBounds(labels={"owner": "a*"}, fields=frozenset({"labels"}))),
        ("labels.owner=a*", JobBounds(texts={"labels": frozenset({"a"})}, fields=frozenset({"labels"}))),
        ("labels.owner:Ann", JobBounds(texts={"labels": frozenset({"ann"})}, fields=frozenset({"labels"}))),
        ("labels.owner!=ann", JobBounds(fields=frozenset({"labels"}))),
        ("labels.owner=a\0bc", JobBounds(texts={"labels": frozenset({"bc"})}, fields=frozenset({"labels"}))),
        ("NOT labels.owner=ann", JobBounds(fields=frozenset({"labels"}))),
        ("labels.owner=ann OR jobId=x", JobBounds(fields=frozenset({"labels", "jobId"}))),
        (
            "(labels.owner=ann jobId=x) NOT errorMessage:*",
            JobBounds(labels={"owner": "ann"}, job_id="x", fields=frozenset({"labels", "jobId", "errorMessage"})),
        ),
        ("createTime>2026-01-31T12:00Z", JobBounds(since_s=NOON_S - 0.01, fields=frozenset({"createTime"}))),
        ("createTime<2026-01-31T12:00Z", JobBounds(until_s=NOON_S + 0.01, fields=frozenset({"createTime"}))),
        (
            "createTime=2026-01-31T12:00Z",
            JobBounds(since_s=NOON_S - 0.01, until_s=NOON_S + 0.01, fields=frozenset({"createTime"})),
        ),
        (
            "createTime>=2026-01-31T12:00Z AND createTime>=2000-01-01",
            JobBounds(since_s=NOON_S - 0.01, fields=frozenset({"createTime"})),
        ),
        ("createTime!=2026-01-31", JobBounds(fields=frozenset({"createTime"}))),
        ("createTime:2026", JobBounds(fields=frozenset({"createTime"}))),
        ("startTime>2026-01-31", JobBounds(fields=frozenset({"startTime"}))),
        (
            'trainingInput.region:eu* (trainingInput.args:--n trainingInput.a="x y") trainingInput.b<3',
            JobBounds(texts={"trainingInput": frozenset({"eu", "--n", "x y"})}, fields=frozenset({"trainingInput"})),
        ),
        ("trainingInput.region:*", JobBounds(fields=frozenset({"trainingInput"}))),
        ("trainingInput.region!=eu", JobBounds(fields=frozenset({"trainingInput"}))),
        ("trainingInput.region:eu OR trainingInput.region:us", JobBounds(fields=frozenset({"trainingInput"}))),
        ("errorMessage:memory", JobBounds(fields=frozenset({"errorMessage"}))),
    ],
)
def test_a_filter_bounds_what_nothing_but_and_joins(text: str, bounds: JobBounds) -> None:
    assert bounds_of(parse_filter(text)) == bounds
