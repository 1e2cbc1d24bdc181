"""Defines the webhooks that a job itself names: which values are allowed, and what may be shown of them."""

from __future__ import annotations

import re
from typing import Annotated, Final, cast, final

from pydantic import BeforeValidator, Field

from lockstep.jobs.notifications.webhook_urls import check_hook_url, display_url
from lockstep.jobs.parsing.fields import SECRET_NAME, AbstractDocument, rule_error
from lockstep.jobs.running.states import JobState

MAX_JOB_WEBHOOKS: Final = 8
MAX_URL_LENGTH: Final = 2048
HIDDEN_PATH: Final = "/***"
"""Replaces the path and query of a URL when a job is shown."""

# The characters of RFC 3986. What parsers read differently (backslashes, blanks, line ends) is not allowed in a URL.
_URL = re.compile(r"[A-Za-z0-9:/?#\[\]@!$&'()*+,;=._~%-]+")
_SECRET_NAME = re.compile(SECRET_NAME)


def _check_url(value: object) -> object:
    if not (isinstance(value, str) and len(value) <= MAX_URL_LENGTH and _URL.fullmatch(value)):
        raise rule_error(allowed=f"a URL of at most {MAX_URL_LENGTH} ASCII characters", is_hidden=True)
    return check_hook_url(value)


def _check_secret(value: object) -> object:
    # Somebody may have written the secret itself here, so no error message repeats it.
    if value is not None and not (isinstance(value, str) and _SECRET_NAME.fullmatch(value)):
        allowed = "a secret's name: 1 to 64 letters, digits, _ and -, starting with a letter"
        raise rule_error(allowed=allowed, is_hidden=True)
    return value


@final
class JobWebhook(AbstractDocument):
    """A webhook of one job, which is notified of the job's state changes.

    Attributes:
        url: the URL to notify. It may contain a secret, so it is never shown whole.
        secret: the name of the project's secret that signs the messages; None for no signature.
        states: the states to notify of; all states if empty.
    """

    url: Annotated[str, BeforeValidator(_check_url)] = Field(repr=False)
    secret: Annotated[str | None, BeforeValidator(_check_secret)] = None
    states: tuple[JobState, ...] = Field(default=(), max_length=len(JobState))

    @property
    def display_url(self) -> str:
        """The part of the URL that may be shown."""
        return display_url(self.url)

    def redacted(self) -> JobWebhook:
        """Returns the webhook as readers of the job may see it, with only the scheme, host and port of its URL."""
        return self.model_copy(update={"url": f"{self.display_url}{HIDDEN_PATH}"})


def _check_hooks(value: object) -> object:
    # This runs before all other validation: Pydantic's errors about a value that is not a list, or about an entry that
    # is not a webhook, would repeat the value.
    entries = list(cast("list[object]", value)) if isinstance(value, list | tuple) else None
    if entries is None or not all(isinstance(entry, dict | JobWebhook) for entry in entries):
        raise rule_error(allowed="a list of webhooks, each with url, and optionally secret and states", is_hidden=True)
    if len(entries) > MAX_JOB_WEBHOOKS:
        raise rule_error(allowed=f"at most {MAX_JOB_WEBHOOKS} webhooks, not {len(entries)}", is_hidden=True)
    return entries


JobWebhooks = Annotated[tuple[JobWebhook, ...], BeforeValidator(_check_hooks)]
"""The webhooks of one job."""
