"""The stream of a log goes on through what passes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockstep.cli import stream
from lockstep.client import Client
from lockstep.errors import AuthenticationError, LockstepError, StorageError, UnavailableError


class FakeClient:
    """Raises and answers what it is told, in order; each page holds one line."""

    def __init__(self, *steps: LockstepError | str) -> None:
        self.steps = list(steps)
        self.num_lookups = 0

    def find_again(self) -> None:
        self.num_lookups += 1

    def log_page(self, job: str, *, cursor: str = "") -> dict[str, Any]:
        step = self.steps.pop(0)
        if isinstance(step, LockstepError):
            raise step
        entry = {"replica": "master-replica-0", "timestamp": "2026-01-01T00:00:00+00:00", "textPayload": step}
        return {"entries": [entry], "cursor": cursor + "+", "complete": not self.steps, "numMissing": 0}

    def job(self, _: str) -> dict[str, Any]:
        lockstep = {"waitingFor": None, "replicas": [{}], "simulated": False}
        return {"state": "SUCCEEDED" if not self.steps else "RUNNING", "lockstep": lockstep}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "POLL_S", 0.0)


def test_a_service_and_a_bucket_may_fail_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient("one", StorageError("the bucket"), "two", UnavailableError("the service"), "three")
    ended = stream.follow(cast("Client", client), "j")
    assert ended["state"] == "SUCCEEDED"
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["one", "two", "three"]
    assert client.num_lookups == 5, "the service is looked for before anything is sent"


@pytest.mark.parametrize("error", [StorageError("the bucket"), UnavailableError("the service")])
def test_what_stays_away_is_said(error: LockstepError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AWAY_S", -1.0)
    with pytest.raises(type(error)):
        stream.follow(cast("Client", FakeClient("one", error, "two")), "j")


def test_a_refusal_ends_the_stream() -> None:
    with pytest.raises(AuthenticationError):
        stream.follow(cast("Client", FakeClient(AuthenticationError("no"), "one")), "j")
