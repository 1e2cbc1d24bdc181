"""The flags of ``lockstep logs``: what they make of the log, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from lockstep.cli import logs
from lockstep.cli.app import app
from lockstep.errors import InvalidInputError
from lockstep.jobs.logs import LogEntry, Severity, StoredEntry
from lockstep.jobs.logs.filters import parse_log_filter
from lockstep.testing.machine import ENTRY


class FakeClient:
    """Holds the log of one job, and those of a model's servers."""

    state = "READY"
    last_server = "b"

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, _: str) -> dict[str, Any]:
        return {"lockstep": {"replicas": [{"name": "master-replica-0"}, {"name": "worker-replica-0"}]}}

    def log_entries(self, job_id: str, *, filter_text: str = "") -> Iterator[dict[str, Any]]:
        holds = parse_log_filter(filter_text)
        for attempt in (0, 1):
            for replica in ("master-replica-0", "worker-replica-0"):
                for severity in (Severity.INFO, Severity.ERROR):
                    text = f"{attempt} {replica[0]} {severity.name[0]}"
                    stored = StoredEntry(seq=0, time_s=attempt * 3600.0, stream="stdout", severity=severity, text=text)
                    entry = LogEntry(project="local", job=job_id, replica=replica, attempt=attempt, stored=stored)
                    if holds(entry):
                        yield entry.to_json()

    def versions(self, model: str, *, limit: int) -> list[dict[str, Any]]:
        return [{"name": f"projects/local/models/{model}/versions/v{number}"} for number in (2, 1)][:limit]

    def version_log_page(
        self, model: str, *, version: str, server: str = "", cursor: str = "", filter_text: str = ""
    ) -> dict[str, Any]:
        """Has server a end while it is read, and then server b, which goes on."""
        self.num_asked = getattr(self, "num_asked", 0) + 1
        server = server or ("a" if self.num_asked < 3 else self.last_server)
        holds, number = parse_log_filter(filter_text), int(cursor or 0)
        text = f"{model} {version} {server} {number}"
        stored = StoredEntry(seq=number, time_s=0.0, stream="stdout", severity=Severity.INFO, text=text)
        entry = LogEntry(project="local", job="m", replica="master-replica-0", attempt=0, stored=stored)
        is_over = server == "a" and number == 1
        entries = [entry.to_json()] if holds(entry) else []
        return {
            "entries": entries,
            "cursor": str(number + 1),
            "more": not is_over,
            "complete": is_over,
            "numMissing": 0,
            "server": server,
        }

    def version(self, model: str, *, name: str) -> dict[str, Any]:
        return {"name": f"{model}/{name}", "state": self.state, "errorMessage": "the model is broken"}


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "connect", lambda _project: FakeClient())


ALL = ["0 m I", "0 m E", "0 w I", "0 w E", "1 m I", "1 m E", "1 w I", "1 w E"]


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        ([], ALL),
        (["--severity", "warning"], ["0 m E", "0 w E", "1 m E", "1 w E"]),
        (["--replica", "worker-replica-0"], ["0 w I", "0 w E", "1 w I", "1 w E"]),
        (["--attempt", "1"], ALL[4:]),
        (["--since", "1970-01-01T00:30:00Z"], ALL[4:]),
        (["--since", "10m"], []),
        (["--limit", "3"], ALL[:3]),
        (["--filter", 'textPayload:"m I" OR textPayload:"w E"', "--attempt", "0"], ["0 m I", "0 w E"]),
        (["--filter", "severity=INFO -- and a comment", "--attempt", "0"], ["0 m I", "0 w I"]),
        (["--filter", "-- a comment alone", "--severity", "ERROR", "--limit", "1"], ["0 m E"]),
        (["--filter", " ", "--severity", "ERROR", "--attempt", "1", "--replica", "master-replica-0"], ["1 m E"]),
    ],
)
def test_flags_choose_entries(flags: list[str], texts: list[str]) -> None:
    done = CliRunner().invoke(app, ["logs", "j", *flags], catch_exceptions=False)
    assert done.exit_code == 0
    assert [ENTRY.sub("", line) for line in done.stdout.splitlines()] == texts


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--model", "m/v1"], ["m v1 a 0", "m v1 a 1"]),
        (["--model", "m"], ["m v2 a 0", "m v2 a 1"]),
        (["--model", "m", "-f", "--limit", "4"], ["m v2 a 0", "m v2 a 1", "m v2 b 0", "m v2 b 1"]),
        (["--model", "m", "-f", "--limit", "1", "--filter", "textPayload:b"], ["m v2 b 0"]),
    ],
)
def test_a_models_newest_server_is_printed_and_the_next_one_followed(flags: list[str], texts: list[str]) -> None:
    done = CliRunner().invoke(app, ["logs", *flags], catch_exceptions=False)
    assert done.exit_code == 0
    assert [ENTRY.sub("", line) for line in done.stdout.splitlines()] == texts


@pytest.mark.parametrize("state", ["FAILED", "DELETING"])
def test_following_a_version_ends_with_the_reason_after_its_last_server(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClient, "state", state)
    monkeypatch.setattr(FakeClient, "last_server", "a")
    done = CliRunner().invoke(app, ["logs", "--model", "m/v1", "-f"], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, f"-- m/v1 is {state}: the model is broken\n")
    assert [ENTRY.sub("", line) for line in done.stdout.splitlines()] == ["m v1 a 0", "m v1 a 1"]


@pytest.mark.parametrize("state", ["FAILED", "READY"])
def test_a_server_that_followed_is_printed_before_the_version_is_said_to_have_failed(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClient, "state", state)
    done = CliRunner().invoke(app, ["logs", "--model", "m/v1", "-f", "--limit", "3"], catch_exceptions=False)
    assert [ENTRY.sub("", line) for line in done.stdout.splitlines()] == ["m v1 a 0", "m v1 a 1", "m v1 b 0"]


@pytest.mark.parametrize("arguments", [[], ["j", "--model", "m"]])
def test_either_a_job_or_a_model_is_named(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["logs", *arguments])
    assert str(done.exception).startswith("name either a job or --model")


@pytest.mark.parametrize("flags", [["--replica", "x"], ["--attempt", "0"]])
def test_flags_of_jobs_are_refused_for_a_model(flags: list[str]) -> None:
    done = CliRunner().invoke(app, ["logs", "--model", "m", *flags])
    assert str(done.exception).startswith("--replica and --attempt are only for jobs")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--filter", "severty=ERROR"], "filter: column 1; received 'severty'; did you mean 'severity'?"),
        (["--severity", "loud"], "--severity; received 'loud'; allowed: DEFAULT, DEBUG, INFO"),
        (["--replica", "worker"], "--replica; received 'worker'; allowed: master-replica-0, worker-replica-0"),
        (["--since", "yesterday"], "--since; received 'yesterday'; allowed: a time such as"),
        (["--since", "999999d"], "--since; received '999999d'; allowed: a time such as"),
    ],
)
def test_what_no_flag_takes_is_refused(flags: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["logs", "j", *flags])
    assert isinstance(done.exception, InvalidInputError)
    assert str(done.exception).startswith(message)
