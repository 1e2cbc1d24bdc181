"""The next useful command for a job, and what `submit` answers when the job has ended."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockstep.cli import submit
from lockstep.cli.answers import Format
from lockstep.cli.next_commands import next_command
from lockstep.cli.stream import Printing
from lockstep.client import Client
from lockstep.errors import ExitCode


def job(state: str, **outputs: str) -> dict[str, Any]:
    return {"jobId": "j", "state": state, "lockstep": {"outputs": outputs, "simulated": False}}


@pytest.mark.parametrize(
    ("found", "models", "hint"),
    [
        (job("QUEUED"), [], "to follow its log: lockstep logs -f j"),
        (job("RUNNING", model="b/model"), ["b/model"], "to follow its log: lockstep logs -f j"),
        (job("FAILED"), [], "to see the first error: lockstep logs j --filter 'severity>=ERROR' --limit 1"),
        (job("SUCCEEDED", model="b/model"), ["b/x.keras"], "to serve its model: lockstep deploy MODEL --job j"),
        (job("SUCCEEDED", model="b/model"), ["b/model"], "to see its files: lockstep artifacts j"),
        (job("SUCCEEDED", predictions="b/my out"), [], "to see its files: lockstep bucket ls 'b/my out'"),
        (job("CANCELLED"), [], ""),
    ],
)
def test_the_next_command_follows_from_the_state(found: dict[str, Any], models: list[str], hint: str) -> None:
    assert next_command(found, models=models) == hint


class Service:
    """Stands for the client of a service in which a job ends in a given state."""

    def create_job(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**job("QUEUED"), "jobId": body["jobId"]}

    def job_events(self, _job: str) -> list[dict[str, Any]]:
        return []


@pytest.mark.parametrize(
    ("state", "code"),
    [("SUCCEEDED", None), ("FAILED", ExitCode.JOB_FAILED), ("CANCELLED", ExitCode.JOB_CANCELLED)],
)
@pytest.mark.parametrize("output_format", [Format.TABLE, Format.JSON])
def test_a_submitted_job_is_answered_once_it_has_ended(
    state: str, code: ExitCode | None, output_format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Printing] = []

    def follow(_client: Client, _job: str, *, prints: Printing) -> dict[str, Any]:
        printed.append(prints)
        return job(state)

    monkeypatch.setattr(submit, "follow", follow)
    client = cast("Client", Service())
    answer = submit.submit_body(client, {"jobId": "j"}, stream_logs=True, output_format=output_format)
    assert (None if answer.error is None else cast("Any", answer.error).exit_code) == code
    if output_format is Format.JSON:
        assert (printed, answer.document) == ([Printing.NOTHING], job(state))
    else:
        assert (printed, answer.hint) == ([Printing.TEXT], next_command(job(state)))
    at_once = submit.submit_body(client, {"jobId": "j"}, stream_logs=False, output_format=output_format)
    assert (at_once.error, cast("Any", at_once.document)["state"], len(printed)) == (None, "QUEUED", 1)
