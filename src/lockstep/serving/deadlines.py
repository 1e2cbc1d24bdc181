"""The time that the client of a request waits, of Google's APIs: the header ``X-Server-Timeout``."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lockstep.errors import DeadlineError, InvalidInputError

TIMEOUT_HEADER: Final = "x-server-timeout"
"""The header with the number of seconds. What the client does not wait for any more is not computed."""


def read_timeout(header: str | None) -> float | None:
    """Reads the header ``X-Server-Timeout``.

    Args:
        header: its value; None if the request has none.

    Returns:
        The number of seconds that the client waits; None if it does not say.

    Raises:
        InvalidInputError: If the header is not a positive number.
    """
    if header is None:
        return None
    with suppress(ValueError):
        timeout_s = float(header)
        if 0 < timeout_s < float("inf"):
            return timeout_s
    raise InvalidInputError("X-Server-Timeout", received=header, allowed="a number of seconds")


def deadline_passed(timeout_s: float) -> DeadlineError:
    """Returns the error of a request that was not answered in time.

    Args:
        timeout_s: how long its client waits, in seconds.
    """
    return DeadlineError(f"no prediction within {timeout_s:g} s (X-Server-Timeout)", action="try again later")
