"""Parses times of the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from lockstep.errors import InvalidInputError

_AGO: Final = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_moment(text: str, *, flag: str) -> str:
    """Returns the time that a flag's value stands for, in UTC, in the form of RFC 3339.

    Args:
        text: a time, or a duration before now, such as ``10m``.
        flag: the flag's name, for the error message.

    Raises:
        InvalidInputError: the text is neither.
    """
    ago = _AGO.fullmatch(text)
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
