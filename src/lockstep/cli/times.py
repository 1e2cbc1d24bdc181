"""Parses times of the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from lockstep.errors import InvalidInputError

_DURATION: Final = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_moment(text: str, *, flag: str) -> str:
    """Returns the time that a flag's value stands for, in UTC, in the form of RFC 3339.

    Args:
        text: a time, or a duration before now, such as ``10m``.
        flag: the flag's name, for the error message.

    Raises:
        InvalidInputError: the text is neither.
    """
    ago = _DURATION.fullmatch(text)
    try:
        if ago is not None:
            time = datetime.now(tz=UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            time = datetime.fromisoformat(text).astimezone()  # the default zone is this machine's, as in printed times
    except (ValueError, OverflowError):
        raise InvalidInputError(
            flag, received=text, allowed="a time such as 2026-01-31T12:00:00Z, or 30s, 10m, 2h, 1d ago"
        ) from None
    return time.astimezone(UTC).isoformat()


def read_duration_s(text: str, *, flag: str) -> float:
    """Returns the duration that a flag's value stands for, in seconds.

    Args:
        text: the duration, such as ``90s`` or ``10m``.
        flag: the flag's name, for the error message.

    Raises:
        InvalidInputError: the text is not a duration.
    """
    duration = _DURATION.fullmatch(text)
    if duration is None:
        raise InvalidInputError(flag, received=text, allowed="a duration such as 30s, 10m, 2h or 1d")
    return timedelta(**{_UNITS[duration[2]]: int(duration[1])}).total_seconds()
