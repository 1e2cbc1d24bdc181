"""Webhooks: which events each one receives, and what is sent. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, final

from pydantic import AfterValidator, Field

from lockstep.jobs.billing.budgets import Alert
from lockstep.jobs.notifications.signatures import sign
from lockstep.jobs.notifications.webhook_urls import check_hook_url, place_of
from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Text, rule_error
from lockstep.jobs.parsing.rules import parse_document
from lockstep.jobs.running.states import JobEvent, JobState

ALERT: Final = "budget"
"""What an alert is called where a change of state has its name."""

GAP_S: Final = 10.0
"""How long a number that is missing between two events may still come: of a transaction that is not over."""

MAX_AGE_S: Final = 3 * 86400.0
"""Events that are older are dropped."""


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
    """A URL that is notified, and of what.

    Attributes:
        name: its permanent name: delivery progress is stored under it.
        url: may be a secret itself, so it is never shown whole.
        secret_file: file with the secret that messages are signed with; None for no signature.
        projects: of whose jobs; of all if empty.
        states: of which states; of all if empty.
        budgets: whether it is notified of budgets' alerts as well.
    """

    name: str
    url: str = field(repr=False)
    secret_file: Path | None = None
    projects: tuple[str, ...] = ()
    states: tuple[JobState, ...] = ()
    budgets: bool = True

    @property
    def place(self) -> str:
        """The part of its URL that may be shown."""
        return place_of(self.url)

    def wants(self, event: HookEvent) -> bool:
        """Whether it is notified of an event: only of changes of state, and of alerts."""
        if self.projects and event.project not in self.projects:
            return False
        if event.alert is not None:
            return self.budgets
        return event.kind in JobEvent.__members__.values() and (not self.states or event.state in self.states)


@final
@dataclass(frozen=True, kw_only=True)
class HookEvent:
    """One thing that happened to a job, or one alert of a budget.

    Attributes:
        seq: its number among all events, or among all alerts.
        time_s: when it was recorded, seconds since 1970 UTC.
        time: when it happened, as the contract writes a time.
        project: the project.
        job: the job's name.
        uid: names the job for ever.
        kind: what happened, such as ``started``.
        state: the state after it.
        detail: the cause, in words.
        alert: what is spent of which budget, where it is no job that something happened to.
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
    """Reads the content of a webhook file: ``webhooks`` by name, each with ``url`` and what else there is to say.

    Args:
        document: what the YAML parser gave.
        source: the file's name, for errors; files of secrets lie beside it unless their paths are absolute.

    Raises:
        ConfigError: it has an unknown key or a wrong type.
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


def message_of(event: HookEvent) -> bytes:
    """Returns what is sent of an event: JSON, always the same bytes of one event."""
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


def headers_of(event: HookEvent, *, name: str, key: bytes | None, time_s: float) -> Mapping[str, str]:
    """Returns the headers of an event's message, as Standard Webhooks names them.

    Args:
        event: the event.
        name: the webhook's name.
        key: signs the message; None for no signature.
        time_s: when it is sent, seconds since 1970 UTC.
    """
    message_id = f"{name}-{event.seq}" if event.alert is None else f"{name}-{event.seq}-{ALERT}"
    headers = {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(time_s)),
    }
    if key is not None:
        signature = sign(message_of(event), message_id=message_id, timestamp=int(time_s), key=key)
        headers["webhook-signature"] = signature
    return headers


def settled(events: Sequence[HookEvent], *, cursor: int, now_s: float) -> Sequence[HookEvent]:
    """Returns the events up to the first one before which another may still appear.

    Numbers are given when an event is written, and events are seen when their transactions end, which may be in another
    order. A number that is still missing some seconds later was of a transaction that failed.

    Args:
        events: those after the cursor, in the order of their numbers.
        cursor: the number of the last one that was dealt with.
        now_s: seconds since 1970 UTC.
    """
    for position, event in enumerate(events):
        if event.seq != cursor + 1 and now_s - event.time_s < GAP_S:
            return events[:position]
        cursor = event.seq
    return events
