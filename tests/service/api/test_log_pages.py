"""The log over REST: from its end, around an entry, and of a few of a job's replicas."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.recorded_jobs import MASTER, record_job, write_log

from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

WORKER = "worker-replica-0"


@pytest.fixture
def log(bench: Bench) -> None:
    """A job that is over, whose two replicas have written the entries 0 to 29 each."""
    job = record_job(bench, "j", num_workers=1, num_entries=30)
    for replica in (MASTER, WORKER):
        for first in (0, 10, 20):
            write_log(job, first, first + 9, replica=replica)


def _get(service: Served, **query: Any) -> dict[str, Any]:
    answer = service.http.get("/v1/projects/local/jobs/j/logEntries", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _seqs(page: dict[str, Any]) -> list[int]:
    return [int(entry["insertId"].rpartition(".")[2]) for entry in page["entries"]]


@pytest.mark.usefixtures("log")
def test_a_log_is_read_from_its_end_towards_its_beginning(service: Served) -> None:
    page = _get(service, at="end", pageSize=8)
    assert (_seqs(page), page["complete"], page["more"]) == ([26, 26, 27, 27, 28, 28, 29, 29], True, False)
    assert _seqs(_get(service, cursor=page["cursor"])) == []
    seen = _seqs(page)
    while "earlier" in page:
        page = _get(service, before=page["earlier"], pageSize=7)
        seen = _seqs(page) + seen
    assert seen == [number for number in range(30) for _ in range(2)]


@pytest.mark.usefixtures("log")
def test_a_page_around_an_entry_has_what_is_before_it_and_goes_on_after_it(service: Served) -> None:
    page = _get(service, at=f"000.{MASTER}.000000000015", replica=MASTER, pageSize=6)
    assert (_seqs(page), page["more"]) == ([12, 13, 14, 15, 16, 17], True)
    assert _seqs(_get(service, cursor=page["cursor"], replica=MASTER, pageSize=3)) == [18, 19, 20]
    assert _seqs(_get(service, before=page["earlier"], replica=MASTER, pageSize=2)) == [10, 11]
    assert _seqs(_get(service, at=f"000.{MASTER}.000000000000", replica=MASTER, pageSize=4)) == [0, 1, 2, 3]


@pytest.mark.usefixtures("log")
def test_of_some_replicas_only_their_entries_are_read_and_the_log_is_complete_with_them(service: Served) -> None:
    page = _get(service, replica=WORKER)
    assert (_seqs(page), page["complete"]) == (list(range(30)), True)
    assert {entry["resource"]["labels"]["task_name"] for entry in page["entries"]} == {WORKER}


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"at": "end", "cursor": "x"}, 400),
        ({"at": "end", "before": "x"}, 400),
        ({"before": "x"}, 400),
        ({"at": "x"}, 400),
        ({"at": "end", "replica": "nobody"}, 400),
        ({"at": "end", "filter": "("}, 400),
        ({"at": f"000.{MASTER}.000000000030"}, 404),
    ],
)
def test_a_place_that_is_none_is_refused(service: Served, query: dict[str, str], status: int) -> None:
    answer = service.http.get("/v1/projects/local/jobs/j/logEntries", params=query)
    assert answer.status_code == status, answer.text
