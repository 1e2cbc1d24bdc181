"""The errors that a service responds with."""

from __future__ import annotations

import httpx
import pytest

from lockstep.client.error_answers import read_error
from lockstep.errors import (
    InvalidInputError,
    LockstepError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (429, "RATE_LIMIT", RateLimitError),
        (429, "OVERLOADED", OverloadedError),
        (429, None, OverloadedError),
        (503, "NO_SERVER_READY", UnavailableError),  # a class of the service's own
        (404, "NOT_FOUND", NotFoundError),
        (400, "UNHEARD_OF", InvalidInputError),
        (418, "UNHEARD_OF", LockstepError),
    ],
)
def test_an_error_is_of_the_class_that_was_raised_or_of_that_of_its_status(
    status: int, reason: str | None, kind: type[LockstepError]
) -> None:
    error = {"code": status, "message": "no", "status": "X", "details": [{"reason": reason}] if reason else []}
    found = read_error(httpx.Response(status, json={"error": error}, headers={"retry-after": "7"}))
    assert type(found) is kind
    assert found.retry_after_s == (7.0 if status in (429, 503) else None)
