"""Lists of jobs: what a filter chooses is what it holds for, and little is read for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event
from tests.service.postgres import PASSWORD, SQLITES_OWN, Server

from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.lists.filters import JobBounds, bounds_of, parse_filter
from lockstep.jobs.running.states import JobEvent
from lockstep.service.api.resources import job_columns, job_fields, job_resource
from lockstep.service.store import ORDER_KEYS, JobRecord, JobStore, open_database
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

PATH = "/v1/projects/local/jobs"
NUM_JOBS = 24


@pytest.fixture
def jobs(bench: Bench) -> list[JobRecord]:
    """Jobs in several states, of several owners, the newest first; one of another project is among them."""
    clock = iter(range(1_769_860_800, 1_769_960_800, 97))
    store = JobStore(bench.store._engine, clock=lambda: next(clock) + 0.1239)
    for number in range(NUM_JOBS):
        job = store.create(
            project="other" if number == 7 else "local",
            job_id=f"job_{number}",
            training_input={"scaleTier": "CUSTOM" if number % 2 else "BASIC", "args": ["--n", str(number)]},
            labels={"owner": ("ann", "bob", "ann*", "a'b")[number % 4]} if number % 5 else {},
            simulated=False,
            outputs={},
        )
        if number % 3 == 0:
            store.advance(job.uid, JobEvent.FAILED, detail="x", error_message=f"boom {number}", end_time_s=2e9)
        elif number % 3 == 1:
            bill = Bill(ml_units=Decimal(f"0.{number}"), cost_usd=Decimal(f"{number * 7 % 4}.25"))
            store.advance(job.uid, JobEvent.PREPARING, detail="x")
            store.advance(job.uid, JobEvent.STARTED, detail="x", start_time_s=1.9e9 - number % 4)
            store.advance(job.uid, JobEvent.SUCCEEDED, detail="x", end_time_s=2e9, bill=bill, gang_released=True)
    every = [store.get(project="local", job_id=f"job_{number}") for number in range(NUM_JOBS) if number != 7]
    return sorted(every, key=lambda job: (job.create_time_s, job.uid), reverse=True)


FILTERS = [
    "",
    "state:FAILED",
    "state:RUNNING",
    "NOT state:FAILED",
    "state:FAILED OR labels.owner=bob",
    "labels.owner=ann",
    'labels.owner="ann*"',
    "labels.owner=ann*",
    'labels.owner="a\'b"',
    "NOT labels.owner:*",
    "labels.none=ann",
    "labels.owner=\x01",
    "jobId=job_11",
    "jobId=job_7",
    "jobId:job_1* AND state:FAILED",
    "errorMessage:boom",
    "trainingInput.scaleTier=CUSTOM labels.owner=bob",
    "trainingInput.args:n trainingInput.args:1",
    "trainingInput.args:no-such-flag",
    "labels.owner:NN",
    "trainingOutput.consumedMLUnits>=0.2",
    "startTime>2000-01-01",
    "endTime>2000-01-01 AND state!=FAILED",
    "createTime>2026-01-31T12:20:00Z AND createTime<2026-01-31T12:40:00Z",
    "jobPosition:*",
]


def test_a_list_has_what_its_filter_holds_for_the_newest_first(service: Served, jobs: list[JobRecord]) -> None:
    for text in FILTERS:
        predicate = parse_filter(text)
        expected = [job.job_id for job in jobs if predicate(job_resource(job))]
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            answer = service.http.get(PATH, params={"filter": text, "pageSize": 6, "pageToken": token}).json()
            found += [job["jobId"] for job in answer["jobs"]]
            token = answer.get("nextPageToken")
            assert token is None or len(answer["jobs"]) == 6, text
        assert found == expected, text
    shown = job_resource(jobs[0])["createTime"]
    answer = service.http.get(PATH, params={"filter": f"createTime={shown}"}).json()
    assert [job["jobId"] for job in answer["jobs"]] == [jobs[0].job_id], "the time that a job shows finds it"


def _ran_s(job: JobRecord) -> float:
    return 0.0 if job.start_time_s is None or job.end_time_s is None else job.end_time_s - job.start_time_s


ORDERS: dict[str, Callable[[JobRecord], Any]] = {
    "createTime": lambda job: job.create_time_s,
    "startTime": lambda job: job.start_time_s or 0.0,
    "endTime": lambda job: job.end_time_s or 0.0,
    "elapsed": _ran_s,
    "costUsd": lambda job: 0 if job.bill is None else job.bill.cost_usd,
    "numRestarts": lambda job: job.num_restarts,
    "jobId": lambda job: job.job_id,
    "state": lambda job: str(job.state),
    "submittedBy": lambda job: job.submitted_by,
}


@pytest.mark.parametrize("is_descending", [False, True])
def test_a_list_has_the_order_that_is_asked_for(service: Served, jobs: list[JobRecord], is_descending: bool) -> None:
    assert set(ORDERS) == set(ORDER_KEYS)
    for key, value in ORDERS.items():
        for text in ("", "NOT state:QUEUED"):
            predicate = parse_filter(text)
            expected = [
                job.job_id
                for job in sorted(jobs, key=lambda job: (value(job), job.uid), reverse=is_descending)
                if predicate(job_resource(job))
            ]
            found: list[str] = []
            asked = {"filter": text, "pageSize": 5, "orderBy": f"{key} desc" if is_descending else key}
            token: str | None = ""
            while token is not None:
                answer = service.http.get(PATH, params={**asked, "pageToken": token}).json()
                found += [job["jobId"] for job in answer["jobs"]]
                token = answer.get("nextPageToken")
            assert found == expected, (key, text)


def test_an_order_that_does_not_exist_and_a_token_of_another_order_are_refused(
    service: Served, jobs: list[JobRecord]
) -> None:
    del jobs
    for order in ("size", "jobId up", "jobId,state"):
        answer = service.http.get(PATH, params={"orderBy": order})
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert f"orderBy; received '{order}'" in message
        assert "numRestarts" in message
    token = service.http.get(PATH, params={"orderBy": "jobId", "pageSize": 5}).json()["nextPageToken"]
    for order in ("", "jobId desc", "state", "elapsed"):
        answer = service.http.get(PATH, params={"orderBy": order, "pageToken": token})
        assert answer.status_code == 400, order
        assert "pageToken was not issued by this service" in answer.json()["error"]["message"]


def test_the_columns_of_a_filters_fields_are_all_that_it_needs(bench: Bench, jobs: list[JobRecord]) -> None:
    for text in FILTERS:
        predicate = parse_filter(text)
        fields = bounds_of(predicate).fields
        rows = bench.store.scan(project="local", bounds=JobBounds(), columns=job_columns(fields), size=100)
        assert [row.uid for row in rows] == [job.uid for job in jobs]
        for row, job in zip(rows, jobs, strict=True):
            whole = job_resource(job)
            assert job_fields(row, fields=fields) == {name: whole[name] for name in fields if name in whole}
            assert predicate(job_fields(row, fields=fields)) is predicate(whole), text


@contextmanager
def _statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


@SQLITES_OWN
def test_a_page_without_a_filter_reads_one_place_more_than_it_shows(
    bench: Bench, service: Served, jobs: list[JobRecord]
) -> None:
    del jobs
    with _statements(bench.store._engine) as seen:
        assert len(service.http.get(PATH, params={"pageSize": 5}).json()["jobs"]) == 5
    places = [(statement, parameters) for statement, parameters in seen if "LIMIT" in statement]
    assert len(places) == 1
    assert places[0][1][-2] == 6, places
    assert "training_input" not in places[0][0], "whole jobs are read of those that are shown alone"


@SQLITES_OWN
def test_a_list_is_read_along_an_index(bench: Bench) -> None:
    engine = bench.store._engine
    plans = {
        "": "USING COVERING INDEX ix_jobs_project_is_submitted_create_time_s_uid",
        "state:RUNNING": "USING COVERING INDEX ix_jobs_state_project_is_submitted_create_time_s_uid",
    }
    for text, plan in plans.items():
        with _statements(engine) as seen:
            bounds = bounds_of(parse_filter(text))
            bench.store.scan(project="local", bounds=bounds, columns=(), size=5, before=(2e9, "f"))
        statement, parameters = next(found for found in seen if "LIMIT" in found[0])
        with engine.connect() as connection:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        assert plan in rows[0][-1]
        assert not any("TEMP B-TREE" in row[-1] for row in rows)


# Letters that are others in lower case, and characters that mean something to LIKE, to JSON or to both.
CHARACTERS = "kKsf\u212a\u017f\ufb01\u0130 %_/\\'\n*u1"
WORDS = st.text(CHARACTERS, max_size=4)
VALUES = WORDS | st.integers(0, 30) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
COMPARISONS = st.builds(
    lambda field, sign, word: f"{field}{sign}{word}",
    st.sampled_from(["trainingInput.a", "trainingInput.list", "trainingInput.deep.a", "labels.owner"]),
    st.sampled_from([":", ":", "=", "!="]),
    st.one_of(
        WORDS.map(lambda word: f'"{word}"'),
        st.text("kKs\u212a%_/\\1", min_size=1, max_size=3).flatmap(lambda word: st.sampled_from([word, f"{word}*"])),
    ),
)
ANY_FILTER = st.recursive(
    COMPARISONS,
    lambda parts: st.one_of(
        st.lists(parts, min_size=2, max_size=3).map(lambda found: f"({' '.join(found)})"),
        st.lists(parts, min_size=2, max_size=3).map(lambda found: f"({' OR '.join(found)})"),
        parts.map(lambda part: f"NOT {part}"),
    ),
    max_leaves=4,
)
DOCUMENTS = st.builds(
    lambda value, items, deep, owner: {
        "training_input": {"a": value, "list": items, "deep": {"a": deep}},
        "labels": {"owner": owner},
    },
    VALUES,
    st.lists(VALUES, max_size=2),
    VALUES,
    WORDS,
)


def check_that_bounds_lose_nothing(store: JobStore, *, num_examples: int) -> None:
    """What a filter holds for is within its bounds, whatever the jobs say."""
    numbers = count()

    @settings(max_examples=num_examples, deadline=None, derandomize=True, database=None)
    @given(documents=st.lists(DOCUMENTS, min_size=1, max_size=3), text=ANY_FILTER)
    @example(documents=[{"training_input": {"a": "\u212a"}, "labels": {}}], text="trainingInput.a:k")
    @example(documents=[{"training_input": {"a": "k"}, "labels": {}}], text='trainingInput.a:"\u212a"')
    @example(documents=[{"training_input": {"list": ["a\\b"]}, "labels": {}}], text='trainingInput.list:"a\\b"')
    @example(documents=[{"training_input": {}, "labels": {"owner": "I%_/"}}], text="labels.owner:i%_/*")
    def check(documents: list[dict[str, Any]], text: str) -> None:
        project = f"project-{next(numbers)}"
        for number, document in enumerate(documents):
            store.create(project=project, job_id=f"job_{number}", simulated=False, outputs={}, **document)
        predicate = parse_filter(text)

        def held(bounds: JobBounds) -> list[str]:
            columns = {"job_id", *job_columns(("trainingInput", "labels"))}
            rows = store.scan(project=project, bounds=bounds, columns=columns, size=10)
            return [row.job_id for row in rows if predicate(job_fields(row, fields=("trainingInput", "labels")))]

        assert held(bounds_of(predicate)) == held(JobBounds())

    check()


def test_bounds_lose_no_job_that_the_filter_holds_for(bench: Bench) -> None:
    check_that_bounds_lose_nothing(bench.store, num_examples=60)


def test_texts_leave_out_jobs_that_do_not_have_them(bench: Bench, jobs: list[JobRecord]) -> None:
    del jobs
    same = {"project": "local", "labels": {"owner": "a_b%"}, "simulated": False, "outputs": {}}
    bench.store.create(job_id="escaped", training_input={"args": ["\u212a"]}, **same)
    bench.store.create(job_id="plain", training_input={"args": ["a/b", "100%"]}, **same)
    found = {
        "trainingInput.args:no-such-flag": ["escaped"],
        "trainingInput.args:A/B": ["escaped", "plain"],
        'trainingInput.args:"0% "': ["escaped"],
        "labels.owner:A_B%": ["escaped", "plain"],
        "labels.owner:a%b": [],
    }
    for text, names in found.items():
        rows = bench.store.scan(project="local", bounds=bounds_of(parse_filter(text)), columns=("job_id",), size=100)
        assert sorted(row.job_id for row in rows) == names, text


def test_bounds_mean_the_same_on_postgresql(postgres: Server) -> None:
    engine = open_database(postgres.url(postgres.create_database_with_tables()), password=PASSWORD)
    store = JobStore(engine)
    for number in range(5):
        labels = {"owner": "ann" if number % 2 else "bob"}
        given = {"training_input": {}, "labels": labels, "simulated": False, "outputs": {}}
        store.create(project="local", job_id=f"job_{number}", **given)

    def found(text: str, before: tuple[float, str] | None = None) -> list[str]:
        bounds = bounds_of(parse_filter(text))
        rows = store.scan(project="local", bounds=bounds, columns={"job_id"}, size=10, before=before)
        return [row.job_id for row in rows]

    assert found("labels.owner=ann state:QUEUED createTime>2000-01-01") == ["job_3", "job_1"]
    assert found("state:RUNNING") == found("jobId=job_9") == found("createTime<2000-01-01") == []
    middle = store.get(project="local", job_id="job_2")
    assert found("", (middle.create_time_s, middle.uid)) == ["job_1", "job_0"]
    assert found("labels.owner:NN") == ["job_3", "job_1"]
    assert found("labels.owner:%") == []
    check_that_bounds_lose_nothing(store, num_examples=40)
    engine.dispose()
