"""What Azure says went wrong. It wraps errors in errors, some of them as JSON in an outer one's message."""

from __future__ import annotations

import json
from typing import Any


def azure_words(error: BaseException) -> str:
    """Returns what is at the bottom of an error: "AllocationFailed: We do not have sufficient capacity ...".

    Args:
        error: what an Azure library raised, or anything else.

    Returns:
        "" where it is no answer of Azure's.
    """
    told = getattr(error, "error", None)
    if not getattr(told, "code", None):
        return ""
    return "; ".join(_innermost(_document(told)))


def _document(told: Any) -> dict[str, Any]:
    """Returns an error of Azure's library as Azure sent it."""
    return {"code": told.code, "message": told.message, "details": [_document(detail) for detail in told.details]}


def _innermost(document: dict[str, Any]) -> list[str]:
    error = document.get("error", document)
    details = error.get("details") or []
    if details:
        return [words for detail in details for words in _innermost(detail)]
    message = error.get("message") or ""
    try:
        inner = json.loads(message)
    except ValueError:
        inner = None
    if isinstance(inner, dict):
        return _innermost(inner)
    return [f"{error.get('code')}: {message}"]
