"""The progress of webhooks: what threads save together, and what happens to all of it if one part fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, event

from lockstep.service.store import JobRecord, JobStore, LeaseLostError, NewWebhook, WebhookRecord, WebhookStore

TIMEOUT_S = 30.0


def _hooked(store: JobStore, job_id: str) -> JobRecord:
    hook = NewWebhook(sealed=b"url", display_url="https://h", secret=None, states=())
    return store.create(
        project="p", job_id=job_id, training_input={}, labels={}, simulated=False, outputs={}, webhooks=[hook]
    )


def _save_together(hooks: WebhookStore, queues: Sequence[WebhookRecord]) -> list[Exception]:
    """Saves queues in a thread each, while another one saves; returns the errors."""
    errors: list[Exception] = []

    def save(queue: WebhookRecord) -> None:
        try:
            hooks.save(queue)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(queue,)) for queue in queues]
    with hooks._saves:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + TIMEOUT_S
        while len(hooks._unsaved) < len(queues):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    for thread in threads:
        thread.join(TIMEOUT_S)
    return errors


def test_what_threads_save_of_webhooks_meanwhile_is_one_transaction(sqlite: Engine) -> None:
    store, hooks = JobStore(sqlite), WebhookStore(sqlite)
    queues = [hooks.of_job(_hooked(store, f"j{number}").uid)[0] for number in range(6)]
    statements: list[str] = []

    @event.listens_for(sqlite, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    assert _save_together(hooks, [replace(queue, seq=queue.seq + 7) for queue in queues]) == []
    assert statements.count("BEGIN IMMEDIATE") == 1
    assert [hooks.of_job(queue.job_uid or "")[0].seq for queue in queues] == [queue.seq + 7 for queue in queues]


def test_progress_that_cannot_be_recorded_is_that_of_one_webhook_alone(sqlite: Engine) -> None:
    store, hooks = JobStore(sqlite), WebhookStore(sqlite)
    queues = [hooks.of_job(_hooked(store, f"j{number}").uid)[0] for number in range(3)]
    bad: Any = object()
    changed = [replace(queues[0], seq=5), replace(queues[1], problem=bad), replace(queues[2], seq=5)]
    errors = _save_together(hooks, changed)
    assert len(errors) == 1
    assert [hooks.of_job(queue.job_uid or "")[0].seq for queue in queues] == [5, 0, 5]


def test_a_fault_of_the_database_is_raised_for_each_that_saves(sqlite: Engine) -> None:
    def forbid(_connection: Connection) -> None:
        raise LeaseLostError("another service has it")

    (queue,) = WebhookStore(sqlite).of_job(_hooked(JobStore(sqlite), "j").uid)
    errors = _save_together(WebhookStore(sqlite, guard=forbid), [queue] * 4)
    assert [type(error) for error in errors] == [LeaseLostError] * 4
