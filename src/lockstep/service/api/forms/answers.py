"""The forms of responses that any route may return, and the configuration of all forms."""

from __future__ import annotations

from typing import Any, Final, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

STRICT: Final = ConfigDict(extra="forbid")
"""The configuration of forms that have no other keys."""


@with_config(STRICT)
class EmptyForm(TypedDict):
    """An empty response: the request was carried out."""


@with_config(STRICT)
class HealthForm(TypedDict):
    """The health of the service: it answers."""

    status: str


@with_config(STRICT)
class StatusForm(TypedDict):
    """``google.rpc.Status`` as JSON, with an ``ErrorInfo`` if the error has a reason."""

    code: int
    message: str
    status: str
    details: NotRequired[list[dict[str, Any]]]


@with_config(STRICT)
class InferenceErrorForm(TypedDict):
    """An error, in the form of the Open Inference Protocol."""

    error: str


@with_config(STRICT)
class ErrorForm(TypedDict):
    """An error, in Google's form."""

    error: StatusForm
