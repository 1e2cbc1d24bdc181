"""A job's own webhook on a real machine: a receiver that refuses, and a service that is killed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.receiver import TIMEOUT_S, Receiver

from lockstep.testing.machine import Machine

pytestmark = pytest.mark.heavy

HIDDEN = "in-the-url"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []


def test_a_job_tells_its_own_over_the_services_death(own: Machine, receiver: Receiver, tmp_path: Path) -> None:
    up = ("up", "--allow-webhooks-to", "127.0.0.0/8")
    own.run(*up)
    (tmp_path / "key").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    own.run("secrets", "set", "hook-key", "--file", str(tmp_path / "key"))
    flags = ("--webhook", receiver.url, "--webhook-secret", "hook-key")
    shown = [own.run("submit", "told", *own.package(), *flags, "--dry-run", "--", "1", "0")]
    assert "is notified of all states, signed with the secret hook-key" in shown[0]
    refused = own.run("submit", "j", *own.package(), "--webhook", "https://10.0.0.3/x", code=64)
    assert "does not send jobs' webhooks to https://10.0.0.3" in refused
    receiver.status = 503
    own.run("submit", "told", *own.package(), *flags, "--async", "--", "1", "0")
    own.wait("told", lambda job: job["lockstep"]["webhooks"][0]["problem"] == "it answered 503")
    shown.append(own.run("describe", "told"))
    assert "not notified since" in shown[1]
    assert HIDDEN in receiver.url
    own.kill_service()
    receiver.status = 204
    own.run(*up)
    own.wait("told", lambda job: job["state"] == "SUCCEEDED")
    deadline = time.monotonic() + TIMEOUT_S
    while not any(message["state"] == "SUCCEEDED" for message in receiver.taken):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [message["state"] for message in receiver.taken] == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    assert all("webhook-signature" in headers for headers in receiver.headers)
    assert not any(HIDDEN in text for text in (*shown, own.home.service_log.read_text()))
