"""Extracts the innermost messages of Azure's errors. Azure nests errors, some as JSON in the outer error's message."""

from __future__ import annotations

import json
from typing import Any


def azure_words(error: BaseException) -> str:
    """Returns the innermost message of an error: "AllocationFailed: We do not have sufficient capacity ...".

    Args:
        error: an exception of one of Azure's libraries, or any other exception.

    Returns:
        The message; "" if the exception is not an error response of Azure.
    """
    told = getattr(error, "error", None)
    if not getattr(told, "code", None):
        return ""
    return "; ".join(_innermost(_document(told)))


def _document(told: Any) -> dict[str, Any]:
    """Returns an error object of Azure's library as the JSON document that Azure sent."""
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
