"""What any route may answer, and how strict all forms are."""

from __future__ import annotations

from typing import Any, Final, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

STRICT: Final = ConfigDict(extra="forbid")
"""Of forms that have no other keys."""


@with_config(STRICT)
class EmptyForm(TypedDict):
    """Nothing: it was done."""


@with_config(STRICT)
class HealthForm(TypedDict):
    """That the service answers."""

    status: str


@with_config(STRICT)
class StatusForm(TypedDict):
    """``google.rpc.Status`` as JSON, with an ``ErrorInfo`` where the error has a reason."""

    code: int
    message: str
    status: str
    details: NotRequired[list[dict[str, Any]]]


@with_config(STRICT)
class ErrorForm(TypedDict):
    """An error, in Google's form."""

    error: StatusForm
