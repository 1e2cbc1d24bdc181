"""Follows a job while the service, its address and its bucket may fail for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstep.errors import StorageError, UnavailableError

if TYPE_CHECKING:
    from lockstep.client.client import Client

POLL_S: Final = 0.3
JOB_S: Final = 1.0
"""The interval between requests for the job's state, in seconds, unless the log shows that the state has changed."""
AWAY_S: Final = 60.0
"""How long the service or its bucket may not respond, in seconds."""

Answer = TypeVar("Answer")


def ask(client: Client, request: Callable[[Client], Answer], *, away_s: float | None = None) -> Answer:
    """Returns the answer to a request, also if the service restarts meanwhile, with another port and token.

    Args:
        client: the client of the service.
        request: sends the request; it may be sent several times.
        away_s: how long the service may not respond, in seconds; `AWAY_S` if omitted.

    Raises:
        UnavailableError: the service did not respond for that long.
        StorageError: the bucket could not be read for that long.
    """
    deadline = time.monotonic() + (AWAY_S if away_s is None else away_s)
    while True:
        try:
            client.find_again()
            return request(client)
        except (UnavailableError, StorageError):
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def followed(client: Client, job: str, *, filter_text: str = "") -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields the pages of a job's log, each with the latest known job, until the job has ended and its log is complete.

    The service may stop and restart meanwhile, with another port and token, and its bucket may fail for a while,
    because the reader keeps the cursor. To limit the requests if many readers follow one job, the function pauses after
    a page without more entries behind it, and does not request the job with each page.

    Args:
        client: the client of the service.
        job: the job's name.
        filter_text: the filter for entries, in Cloud Logging's query language.

    Raises:
        UnavailableError: the service did not respond for longer than `AWAY_S`.
        StorageError: the bucket could not be read for longer than `AWAY_S`.
    """
    cursor = ""
    found: dict[str, Any] | None = None
    asked = time.monotonic()
    away_since: float | None = None
    while True:
        try:
            client.find_again()
            page = client.log_page(job, cursor=cursor, filter_text=filter_text)
            moved_on = page["complete"] or (page["entries"] and found and found["state"] != "RUNNING")
            if found is None or moved_on or time.monotonic() - asked > JOB_S:
                found = client.job(job)
                asked = time.monotonic()
        except (UnavailableError, StorageError):
            away_since = time.monotonic() if away_since is None else away_since
            if time.monotonic() - away_since > AWAY_S:
                raise
            time.sleep(POLL_S)
            continue
        away_since = None
        cursor = page["cursor"]
        yield page, found
        if page["complete"]:
            return
        if not page["more"]:
            time.sleep(POLL_S)
