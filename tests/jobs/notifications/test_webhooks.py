"""Whom webhooks tell of what, and how it is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.notifications.signatures import sign
from lockstep.jobs.notifications.webhooks import (
    GAP_S,
    HookEvent,
    Webhook,
    build_headers,
    build_message,
    parse_webhooks,
    without_gaps,
)
from lockstep.jobs.running.states import JobState

EVENT = HookEvent(
    seq=7,
    time_s=100.0,
    time="1970-01-01T00:01:40.000Z",
    project="vision",
    job="rnn",
    uid="abc",
    kind="failed",
    state="FAILED",
    detail="exit 3",
)
HOOK = Webhook(name="ops", url="https://hooks.example.com/T00/secret")


def test_a_file_is_read(tmp_path: Path) -> None:
    document = {
        "webhooks": {
            "ops": {"url": "https://hooks.example.com/x", "secretFile": "hook.key", "states": ["FAILED"]},
            "local-1": {"url": "http://127.0.0.1:9000/", "projects": ["vision"]},
        }
    }
    hooks = parse_webhooks(document, source=str(tmp_path / "hooks.yaml"))
    assert hooks["ops"] == Webhook(
        name="ops",
        url="https://hooks.example.com/x",
        secret_file=tmp_path / "hook.key",
        states=(JobState.FAILED,),
    )
    assert hooks["local-1"].projects == ("vision",)
    assert HOOK.display_url == "https://hooks.example.com"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/x",
        "ftp://hooks.example.com",
        "https://me:word@hooks.example.com",
        "https://",
        "https://[::1",
        "https://x:99999/",
        "hooks.example.com",
    ],
)
def test_a_url_that_would_give_something_away_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"webhooks.ops.url; .*allowed: an https:// URL without a user name"):
        parse_webhooks({"webhooks": {"ops": {"url": url}}}, source="hooks.yaml")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"hooks": {}},
        {"webhooks": {"a b": {"url": "https://x"}}},
        {"webhooks": {"a": {}}},
        {"webhooks": {"a": {"url": "https://x", "state": "FAILED"}}},
        {"webhooks": {"a": {"url": "https://x", "states": ["LOST"]}}},
    ],
    ids=["empty", "other", "name", "no-url", "unknown", "state"],
)
def test_another_file_is_refused(document: object) -> None:
    with pytest.raises(ConfigError, match=r"^hooks.yaml: [^\n]+$"):
        parse_webhooks(document, source="hooks.yaml")


@pytest.mark.parametrize(
    ("changes", "kind", "wanted"),
    [
        ({}, "failed", True),
        ({}, "exec", False),
        ({"projects": ("vision",)}, "failed", True),
        ({"projects": ("other",)}, "failed", False),
        ({"states": (JobState.FAILED,)}, "failed", True),
        ({"states": (JobState.SUCCEEDED,)}, "failed", False),
    ],
    ids=["all", "no-state", "project", "other-project", "state", "other-state"],
)
def test_it_is_told_what_it_wants(changes: dict[str, object], kind: str, wanted: bool) -> None:
    assert replace(HOOK, **changes).wants(replace(EVENT, kind=kind)) is wanted  # type: ignore[arg-type]


def test_a_message_is_json_and_signed() -> None:
    body = build_message(EVENT)
    assert json.loads(body) == {
        "seq": 7,
        "time": "1970-01-01T00:01:40.000Z",
        "project": "vision",
        "job": "rnn",
        "uid": "abc",
        "event": "failed",
        "state": "FAILED",
        "detail": "exit 3",
    }
    headers = build_headers(EVENT, name="ops", key=b"k" * 24, time_s=100.9)
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("ops-7", "100")
    assert headers["webhook-signature"] == sign(body, message_id="ops-7", timestamp=100, key=b"k" * 24)
    assert "webhook-signature" not in build_headers(EVENT, name="ops", key=None, time_s=100.0)


def test_events_wait_for_those_that_may_still_appear_before_them() -> None:
    events = [replace(EVENT, seq=seq, time_s=float(seq)) for seq in (6, 7, 9, 10)]
    assert [event.seq for event in without_gaps(events, cursor=5, now_s=11.0)] == [6, 7]
    assert [event.seq for event in without_gaps(events, cursor=5, now_s=9.0 + GAP_S)] == [6, 7, 9, 10]
    assert without_gaps(events, cursor=4, now_s=11.0) == []
    assert without_gaps([], cursor=4, now_s=11.0) == []
