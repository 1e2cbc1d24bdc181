"""Extracts the innermost messages of Azure's errors. Azure nests errors, some as JSON in the outer error's message."""

from __future__ import annotations

import json
from typing import Any


def azure_message(error: BaseException) -> str:
    """Returns the innermost message of an error: "AllocationFailed: We do not have sufficient capacity ...".

    Args:
        error: an exception of one of Azure's libraries, or any other exception.

    Returns:
        The message; "" if the exception is not an error response of Azure.
    """
    azure_error = getattr(error, "error", None)
    if not getattr(azure_error, "code", None):
        return ""
    return "; ".join(_innermost(_document(azure_error)))


def _document(azure_error: Any) -> dict[str, Any]:
    """Returns an error object of Azure's library as the JSON document that Azure sent."""
    return {
        "code": azure_error.code,
        "message": azure_error.message,
        "details": [_document(detail) for detail in azure_error.details],
    }


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
