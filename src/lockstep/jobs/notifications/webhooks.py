"""Decides which events each webhook receives, and builds the messages. Sending happens elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, final

from pydantic import AfterValidator, Field

from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.notifications.signatures import sign
from lockstep.jobs.notifications.webhook_urls import check_hook_url, display_url
from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Text, rule_error
from lockstep.jobs.parsing.rules import parse_document
from lockstep.jobs.running.states import JobEvent, JobState

ALERT: Final = "budget"
"""The kind of an alert's event, in place of a `JobEvent`."""

GAP_S: Final = 10.0
"""How long a missing event number may still appear, in seconds: its transaction may not have ended yet."""

MAX_AGE_S: Final = 3 * 86400.0
"""The maximum age of an event, in seconds; older events are dropped."""


def _check_name(text: str) -> str:
    if not (0 < len(text) <= 64 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()):
        raise rule_error(allowed="names of 1 to 64 letters, digits, - and _")
    return text


@final
class _WebhookDocument(AbstractDocument):
    url: Annotated[Text, AfterValidator(check_hook_url)]
    secret_file: Text | None = None
    projects: tuple[Text, ...] = ()
    states: tuple[JobState, ...] = ()
    budgets: Flag = True


@final
class _WebhookFile(AbstractDocument):
    webhooks: dict[Annotated[str, AfterValidator(_check_name)], _WebhookDocument] = Field(max_length=32)


@final
@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A URL that is notified, and the events that it is notified of.

    Attributes:
        name: the webhook's permanent name: delivery progress is stored under it.
        url: the URL to notify. It may contain a secret, so it is never shown whole.
        secret_file: the file with the secret that signs the messages; None for no signature.
        projects: the projects whose jobs it is notified of; all projects if empty.
        states: the states that it is notified of; all states if empty.
        budgets: whether it is also notified of budget alerts.
    """

    name: str
    url: str = field(repr=False)
    secret_file: Path | None = None
    projects: tuple[str, ...] = ()
    states: tuple[JobState, ...] = ()
    budgets: bool = True

    @property
    def display_url(self) -> str:
        """The part of the URL that may be shown."""
        return display_url(self.url)

    def wants(self, event: HookEvent) -> bool:
        """Returns whether the webhook is notified of an event; only state changes and alerts qualify."""
        if self.projects and event.project not in self.projects:
            return False
        if event.alert is not None:
            return self.budgets
        return event.kind in JobEvent.__members__.values() and (not self.states or event.state in self.states)


@final
@dataclass(frozen=True, kw_only=True)
class HookEvent:
    """An event of a job, or an alert of a budget.

    Attributes:
        seq: the event's number among all events, or the alert's among all alerts.
        time_s: the time when it was recorded, in seconds since 1970 UTC.
        time: the time when it happened, in the contract's form.
        project: the name of the project.
        job: the job's name.
        uid: the permanent id of the job.
        kind: the kind of event, such as ``started``.
        state: the job's state after the event.
        detail: the cause, in words.
        alert: the budget's alert; None for an event of a job.
    """

    seq: int
    time_s: float
    time: str
    project: str
    job: str = ""
    uid: str = ""
    kind: str
    state: str = ""
    detail: str
    alert: Alert | None = None


def parse_webhooks(document: object, *, source: str) -> dict[str, Webhook]:
    """Parses the content of a webhook file: ``webhooks`` by name, each with its ``url`` and options.

    Args:
        document: the value that the YAML parser returned.
        source: the file's name, for error messages. Relative paths of secret files are relative to its folder.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type.
    """
    read = parse_document(_WebhookFile, document=document, source=source)
    folder = Path(source).absolute().parent
    return {
        name: Webhook(
            name=name,
            url=hook.url,
            secret_file=None if hook.secret_file is None else folder / hook.secret_file,
            projects=hook.projects,
            states=hook.states,
            budgets=hook.budgets,
        )
        for name, hook in read.webhooks.items()
    }


def build_message(event: HookEvent) -> bytes:
    """Returns the message about an event as JSON: always the same bytes for the same event."""
    if event.alert is None:
        own = {"job": event.job, "uid": event.uid, "state": event.state}
    else:
        own = {"period": event.alert.period, "share": event.alert.share, "limitUsd": event.alert.limit_usd}
    document = {
        "seq": event.seq,
        "time": event.time,
        "project": event.project,
        "event": event.kind,
        "detail": event.detail,
        **own,
    }
    return json.dumps(document, sort_keys=True).encode()


def build_message_id(event: HookEvent, *, name: str) -> str:
    """Returns the permanent name of an event's message to the webhook of a name."""
    return f"{name}-{event.seq}" if event.alert is None else f"{name}-{event.seq}-{ALERT}"


def build_headers(event: HookEvent, *, name: str, key: bytes | None, time_s: float) -> Mapping[str, str]:
    """Returns the headers of an event's message, as Standard Webhooks defines them.

    Args:
        event: the event.
        name: the webhook's name.
        key: the key that signs the message; None for no signature.
        time_s: the time when the message is sent, in seconds since 1970 UTC.
    """
    message_id = build_message_id(event, name=name)
    headers = {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(time_s)),
    }
    if key is not None:
        signature = sign(build_message(event), message_id=message_id, timestamp=int(time_s), key=key)
        headers["webhook-signature"] = signature
    return headers


def without_gaps(events: Sequence[HookEvent], *, cursor: int, now_s: float) -> Sequence[HookEvent]:
    """Returns the events up to the first gap in which another event may still appear.

    An event gets its number when it is written, but becomes visible when its transaction ends, and transactions may end
    in another order. A number that is still missing after `GAP_S` belongs to a transaction that failed.

    Args:
        events: the events after the cursor, ordered by number.
        cursor: the number of the last event that was handled.
        now_s: the current time, in seconds since 1970 UTC.
    """
    for position, event in enumerate(events):
        if event.seq != cursor + 1 and now_s - event.time_s < GAP_S:
            return events[:position]
        cursor = event.seq
    return events
