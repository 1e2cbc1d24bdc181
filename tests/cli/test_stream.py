"""The stream of a log goes on through what passes."""

from __future__ import annotations

import io
import re
import sys
import time
from typing import Any, cast

import pytest
from rich.console import Console

from lockstep.cli import console, stream
from lockstep.client import Client, following
from lockstep.errors import AuthenticationError, LockstepError, StorageError, UnavailableError
from lockstep.jobs.logs import LogEntry, Severity, StoredEntry
from lockstep.testing.machine import ENTRY


def entry(text: str, *, severity: str = "INFO", attempt: int = 0) -> dict[str, Any]:
    stored = StoredEntry(seq=0, time_s=0.0, stream="stdout", severity=Severity[severity], text=text)
    return LogEntry(project="local", job="j", replica="master-replica-0", attempt=attempt, stored=stored).to_json()


class FakeClient:
    """Raises and answers what it is told, in order; each page holds one line, or none where that is empty."""

    def __init__(self, *steps: LockstepError | str) -> None:
        self.steps = list(steps)
        self.num_lookups = 0

    def find_again(self) -> None:
        self.num_lookups += 1

    def log_page(self, job: str, *, cursor: str = "", filter_text: str = "") -> dict[str, Any]:
        step = self.steps.pop(0)
        if isinstance(step, LockstepError):
            raise step
        page = {"cursor": cursor + "+", "complete": not self.steps, "more": False, "numMissing": 0}
        return {"entries": [entry(step)] if step else [], **page}

    def job(self, _: str) -> dict[str, Any]:
        progress = {"text": "step 7, loss 0.5", "time": time.time()}
        lockstep = {"waitingFor": None, "replicas": [{}], "simulated": False, "progress": progress}
        return {"state": "SUCCEEDED" if not self.steps else "RUNNING", "lockstep": lockstep}


def _texts(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [ENTRY.sub("", line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.0)


def test_a_service_and_a_bucket_may_fail_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient("one", StorageError("the bucket"), "two", UnavailableError("the service"), "three")
    ended = stream.follow(cast("Client", client), "j")
    assert ended["state"] == "SUCCEEDED"
    assert _texts(capsys) == ["one", "two", "three"]
    assert client.num_lookups == 5, "the service is looked for before anything is sent"


@pytest.mark.parametrize("error", [StorageError("the bucket"), UnavailableError("the service")])
def test_what_stays_away_is_said(error: LockstepError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "AWAY_S", -1.0)
    with pytest.raises(type(error)):
        stream.follow(cast("Client", FakeClient("one", error, "two")), "j")


def test_a_stream_in_which_nothing_is_printed_says_how_far_the_program_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(stream, "ERRORS", Console(file=errors, width=200))
    stream.follow(cast("Client", FakeClient("one", "", "two")), "j")
    assert "step 7" not in errors.getvalue()
    monkeypatch.setattr(stream, "PROGRESS_S", -1.0)
    stream.follow(cast("Client", FakeClient("one", "", "two")), "j")
    assert len(re.findall(r"^-- step 7, loss 0\.5, \d+\.\d s ago$", errors.getvalue(), re.MULTILINE)) == 1
    assert _texts(capsys) == ["one", "two"] * 2


def test_a_refusal_ends_the_stream() -> None:
    with pytest.raises(AuthenticationError):
        stream.follow(cast("Client", FakeClient(AuthenticationError("no"), "one")), "j")


def test_a_stream_ends_after_as_many_entries_as_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    followed = stream.follow(cast("Client", FakeClient("one", "two", "three")), "j", limit=2)
    assert followed["state"] == "RUNNING"
    assert _texts(capsys) == ["one", "two"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("severity", "coloured"), [("INFO", False), ("WARNING", True), ("ERROR", True)])
def test_severities_have_colours_on_a_terminal_alone(
    severity: str, coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.EntryPrinter().print(entry("text", severity=severity))
    plain = capsys.readouterr().out
    assert plain.endswith(f" master-replica-0 {severity:<8} text\n")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(console, "OUTPUT", Console(file=terminal, force_terminal=True, _environ={}))
    stream.EntryPrinter().print(entry("text", severity=severity))
    assert ("\x1b[" in terminal.getvalue()) is coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue()) == plain
    monkeypatch.setattr(console, "OUTPUT", Console(file=terminal, force_terminal=True, _environ={"NO_COLOR": "1"}))
    terminal.truncate(terminal.seek(0))
    stream.EntryPrinter().print(entry("text", severity=severity))
    assert terminal.getvalue() == plain


def test_another_attempt_is_said_where_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    printer = stream.EntryPrinter()
    for attempt in (0, 0, 1, 1):
        printer.print(entry("text", attempt=attempt))
    printed = capsys.readouterr()
    assert printed.err == "-- attempt 1\n"
    assert len(printed.out.splitlines()) == 4


PAUSE_S = 0.3


class ScriptedClient:
    """Answers with pages, each with the state that the job is in then; notes what it is asked."""

    def __init__(self, *script: tuple[dict[str, Any], str]) -> None:
        self.script = list(script)
        self.asked: list[str] = []
        self.state = ""

    def find_again(self) -> None:
        pass

    def log_page(self, _job: str, *, cursor: str, filter_text: str) -> dict[str, Any]:
        self.asked.append(f"log{cursor}")
        page, self.state = self.script.pop(0)
        return page

    def job(self, _job: str) -> dict[str, Any]:
        self.asked.append("job")
        return {"state": self.state}


def _page(number: int, *texts: str, more: bool = False, complete: bool = False) -> dict[str, Any]:
    return {"entries": list(texts), "cursor": str(number), "more": more, "complete": complete}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    monkeypatch.setattr(following, "POLL_S", PAUSE_S)
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
    seen = [(page["cursor"], found["state"]) for page, found in following.followed(cast("Client", client), "j")]
    assert seen == [
        *(("1", "PREPARING"), ("2", "PREPARING")),
        *((str(number), "RUNNING") for number in range(3, 7)),
        ("7", "SUCCEEDED"),
    ]
    assert client.asked == ["log", "job", "log1", "log2", "job", "log3", "log4", "log5", "log6", "job"]
    assert pauses == [PAUSE_S] * 5, "after each page but the one with more behind it, and the last"


def test_a_quiet_job_is_asked_for_once_a_second(pauses: list[float]) -> None:
    quiet = [(_page(number), "RUNNING") for number in range(20)]
    client = ScriptedClient(*quiet, (_page(20, complete=True), "FAILED"))
    assert len(list(following.followed(cast("Client", client), "j"))) == 21
    num_seconds = sum(pauses)
    assert client.asked.count("job") <= 2 + num_seconds / following.JOB_S
    assert client.asked.count("job") >= num_seconds / (following.JOB_S + PAUSE_S)
