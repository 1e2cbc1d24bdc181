"""Reads the errors that a service responds with."""

from __future__ import annotations

import email.utils
import time
from typing import Final

import httpx

from lockstep import errors
from lockstep.errors import LockstepError, UnavailableError

_CLASSES: Final = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LockstepError)]
_BY_REASON: Final = {kind.reason(): kind for kind in _CLASSES}
_BY_HTTP_STATUS: Final = {
    **{kind.http_status: kind for kind in reversed(_CLASSES)},
    errors.NotFoundError.http_status: errors.NotFoundError,  # a resource of the service, rather than a file
}
"""The error class of each HTTP status, for responses without a reason, such as those of a prediction server.

Several classes may have the same status. The first one in `lockstep.errors` is used, except for 404.
"""
_TRANSIENT: Final = frozenset({429, 502, 503, 504})
"""The HTTP statuses of requests that may succeed later: of the service, or of a proxy before it."""


def read_error(answer: httpx.Response) -> LockstepError:
    """Returns the error that a response stands for; the class is the one that the service raised.

    ``retry_after_s`` of the error is set if the same request may succeed later.

    Args:
        answer: the response, with a status of 400 or above.
    """
    error = _read(answer)
    is_transient = answer.status_code in _TRANSIENT
    error.retry_after_s = _retry_after_s(answer.headers.get("retry-after", "")) if is_transient else None
    return error


def _retry_after_s(text: str) -> float:
    """Returns the seconds that a ``Retry-After`` header asks for, in both forms of RFC 9110; 0 if in neither."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _read(answer: httpx.Response) -> LockstepError:
    try:
        problem = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return UnavailableError(f"the service responded with status {answer.status_code} and no reason")
    if isinstance(problem, str):  # a prediction server's form
        return _BY_HTTP_STATUS.get(answer.status_code, LockstepError)(problem)
    try:
        message = str(problem["message"])
        reasons = [str(detail["reason"]) for detail in problem.get("details", ()) if "reason" in detail]
    except (AttributeError, KeyError, TypeError):  # the form of some other server, such as a proxy
        return UnavailableError(f"the service responded with status {answer.status_code} and no reason")
    kind = _BY_REASON.get(reasons[0]) if reasons else None  # one that is not in `lockstep.errors` is special to a room
    return (kind or _BY_HTTP_STATUS.get(answer.status_code, LockstepError))(message)
