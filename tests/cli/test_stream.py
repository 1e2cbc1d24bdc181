"""Following a log: which requests it takes."""

from __future__ import annotations

from typing import Any, final

import pytest

from lockstep.cli import stream
from lockstep.cli.stream import followed

Page = dict[str, Any]


@final
class ScriptedClient:
    """Answers with pages, each with the state that the job is in then; notes what it is asked."""

    def __init__(self, *script: tuple[Page, str]) -> None:
        self.script = list(script)
        self.asked: list[str] = []
        self.state = ""

    def find_again(self) -> None:
        pass

    def log_page(self, _job: str, *, cursor: str, filter_text: str) -> Page:
        self.asked.append(f"log{cursor}")
        page, self.state = self.script.pop(0)
        return page

    def job(self, _job: str) -> dict[str, Any]:
        self.asked.append("job")
        return {"state": self.state}


def _page(number: int, *texts: str, more: bool = False, complete: bool = False) -> Page:
    return {"entries": list(texts), "cursor": str(number), "more": more, "complete": complete}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    monkeypatch.setattr(stream.time, "sleep", seen.append)
    monkeypatch.setattr(stream.time, "monotonic", lambda: sum(seen))
    return seen


def test_a_follower_asks_for_the_job_when_it_may_have_moved_on_and_pauses_where_it_has_all(
    pauses: list[float],
) -> None:
    client = ScriptedClient(
        (_page(1), "PREPARING"),
        (_page(2), "PREPARING"),
        (_page(3, "a", more=True), "RUNNING"),
        (_page(4, "b"), "RUNNING"),
        (_page(5, "c"), "RUNNING"),
        (_page(6), "RUNNING"),
        (_page(7, "d", complete=True), "SUCCEEDED"),
    )
    seen = [(page["cursor"], found["state"]) for page, found in followed(client, "j")]
    assert seen == [
        *(("1", "PREPARING"), ("2", "PREPARING")),
        *((str(number), "RUNNING") for number in range(3, 7)),
        ("7", "SUCCEEDED"),
    ]
    assert client.asked == ["log", "job", "log1", "log2", "job", "log3", "log4", "log5", "log6", "job"]
    assert pauses == [stream.POLL_S] * 5, "after each page but the one with more behind it, and the last"


def test_a_quiet_job_is_asked_for_once_a_second(pauses: list[float]) -> None:
    quiet = [(_page(number), "RUNNING") for number in range(20)]
    client = ScriptedClient(*quiet, (_page(20, complete=True), "FAILED"))
    assert len(list(followed(client, "j"))) == 21
    num_seconds = sum(pauses)
    assert client.asked.count("job") <= 2 + num_seconds / stream.JOB_S
    assert client.asked.count("job") >= num_seconds / (stream.JOB_S + stream.POLL_S)
