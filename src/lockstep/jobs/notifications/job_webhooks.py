"""Webhooks that a job names itself: what may be asked for, and what of it is shown."""

from __future__ import annotations

import re
from typing import Annotated, Final, cast, final

from pydantic import BeforeValidator, Field

from lockstep.jobs.notifications.webhook_urls import check_hook_url, place_of
from lockstep.jobs.parsing.fields import SECRET_NAME, AbstractDocument, rule_error
from lockstep.jobs.running.states import JobState

MAX_JOB_WEBHOOKS: Final = 8
MAX_URL_LENGTH: Final = 2048
HIDDEN_PATH: Final = "/***"
"""Stands where a job that is shown leaves the rest of a URL out."""

# RFC 3986's characters: what parsers read differently (backslashes, blanks, line ends) is in no URL.
_URL = re.compile(r"[A-Za-z0-9:/?#\[\]@!$&'()*+,;=._~%-]+")
_SECRET_NAME = re.compile(SECRET_NAME)


def _check_url(value: object) -> object:
    if not (isinstance(value, str) and len(value) <= MAX_URL_LENGTH and _URL.fullmatch(value)):
        raise rule_error(allowed=f"a URL of at most {MAX_URL_LENGTH} ASCII characters", is_hidden=True)
    return check_hook_url(value)


def _check_secret(value: object) -> object:
    # Somebody may write the secret itself here: it is not repeated.
    if value is not None and not (isinstance(value, str) and _SECRET_NAME.fullmatch(value)):
        allowed = "a secret's name: 1 to 64 letters, digits, _ and -, starting with a letter"
        raise rule_error(allowed=allowed, is_hidden=True)
    return value


@final
class JobWebhook(AbstractDocument):
    """Somebody whom a job has told of its states.

    Attributes:
        url: where; it may be a secret itself, so it is never shown whole.
        secret: name of the project's secret that messages are signed with; None for no signature.
        states: of which states; of all, where it is empty.
    """

    url: Annotated[str, BeforeValidator(_check_url)] = Field(repr=False)
    secret: Annotated[str | None, BeforeValidator(_check_secret)] = None
    states: tuple[JobState, ...] = Field(default=(), max_length=len(JobState))

    @property
    def place(self) -> str:
        """The part of its URL that may be shown."""
        return place_of(self.url)

    def shown(self) -> JobWebhook:
        """Returns it as whoever may look at the job sees it."""
        return self.model_copy(update={"url": f"{self.place}{HIDDEN_PATH}"})


def _check_hooks(value: object) -> object:
    # Before anything else looks at them: errors about a list, or about an entry that is none, repeat what they got.
    entries = list(cast("list[object]", value)) if isinstance(value, list | tuple) else None
    if entries is None or not all(isinstance(entry, dict | JobWebhook) for entry in entries):
        raise rule_error(allowed="a list of webhooks, each with url, and secret and states if need be", is_hidden=True)
    if len(entries) > MAX_JOB_WEBHOOKS:
        raise rule_error(allowed=f"at most {MAX_JOB_WEBHOOKS} webhooks, not {len(entries)}", is_hidden=True)
    return entries


JobWebhooks = Annotated[tuple[JobWebhook, ...], BeforeValidator(_check_hooks)]
"""The webhooks of one job."""
