"""What a job may ask for of webhooks, and that nothing repeats what may be a secret."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import parse_job, parse_training_input
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.notifications.job_webhooks import MAX_JOB_WEBHOOKS, MAX_URL_LENGTH, JobWebhook
from lockstep.jobs.running.states import JobState

URL = "https://hooks.example.com:8443/T00/in-the-path?key=in-the-query"


def _parsed(hooks: Any) -> TrainingInput:
    document = {"trainingInput": {"pythonModule": "train", "lockstep": {"webhooks": hooks}}}
    return parse_training_input(document, source="config.yaml")


def test_they_are_read_and_sent_whole_and_shown_without_path_and_query() -> None:
    asked = _parsed([{"url": URL, "secret": "hook-key", "states": ["FAILED"]}, {"url": "http://127.0.0.1:9/x"}])
    first, second = asked.lockstep.webhooks
    assert first == JobWebhook(url=URL, secret="hook-key", states=(JobState.FAILED,))
    assert (second.secret, second.states) == (None, ())
    assert asked.to_json()["lockstep"] == {
        "webhooks": [{"url": URL, "secret": "hook-key", "states": ["FAILED"]}, {"url": "http://127.0.0.1:9/x"}]
    }
    shown = asked.redacted()
    assert [hook.url for hook in shown.lockstep.webhooks] == [
        "https://hooks.example.com:8443/***",
        "http://127.0.0.1:9/***",
    ]
    assert _parsed(shown.to_json()["lockstep"]["webhooks"]) == shown, "what is recorded can be read"  # type: ignore[index]
    assert "in-the" not in repr(asked)


@pytest.mark.parametrize(
    ("hooks", "what"),
    [
        pytest.param([{"url": "http://hooks.example.com/in-the-path"}], r"webhooks\[0\].url", id="plain"),
        pytest.param([{"url": "https://me:in-the-path@hooks.example.com/"}], r"webhooks\[0\].url", id="user"),
        pytest.param([{"url": "https://@hooks.example.com/in-the-path"}], r"webhooks\[0\].url", id="no-user"),
        pytest.param([{"url": "https://a.example\\@b.example/in-the-path"}], r"webhooks\[0\].url", id="backslash"),
        pytest.param([{"url": "https://a.exam\nple/in-the-path"}], r"webhooks\[0\].url", id="line-end"),
        pytest.param([{"url": "https://ä.example/in-the-path"}], r"webhooks\[0\].url", id="not-ascii"),
        pytest.param([{"url": "https:///in-the-path"}], r"webhooks\[0\].url", id="no-host"),
        pytest.param([{"url": f"https://h/in-the-path{'x' * MAX_URL_LENGTH}"}], r"webhooks\[0\].url", id="long"),
        pytest.param([{"url": ["in-the-path"]}], r"webhooks\[0\].url", id="list"),
        pytest.param([{"url": URL, "secret": "in-the-path: no name"}], r"webhooks\[0\].secret", id="secret"),
        pytest.param([{"url": URL, "secret": 5}], r"webhooks\[0\].secret", id="secret-number"),
        pytest.param([{"url": URL, "states": ["LOST"]}], r"webhooks\[0\].states\[0\]", id="state"),
        pytest.param([{"url": URL, "secretFile": "f"}], r"unknown key .*secretFile", id="unknown"),
        pytest.param([{"secret": "key"}], r"webhooks\[0\].url is missing", id="no-url"),
        pytest.param([URL], "webhooks; allowed: a list of webhooks", id="no-entry"),
        pytest.param(URL, "webhooks; allowed: a list of webhooks", id="no-list"),
        pytest.param([{"url": URL}] * (MAX_JOB_WEBHOOKS + 1), "at most 8 webhooks, not 9", id="many"),
    ],
)
def test_others_are_refused_and_not_repeated(hooks: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as raised:
        _parsed(hooks)
    assert "in-the" not in str(raised.value)


def test_the_successors_form_has_no_place_for_them() -> None:
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "pythonPackageSpec": {"pythonModule": "train"}}
    spec = {"workerPoolSpecs": [pool], "webhooks": [{"url": URL}]}
    with pytest.raises(ConfigError, match=r"unknown key jobSpec\.webhooks") as raised:
        parse_job({"displayName": "job", "jobSpec": spec}, source="request")
    assert "in-the" not in str(raised.value)
