"""Responses for errors, in Google's form."""

from __future__ import annotations

import math

from fastapi.responses import JSONResponse

from lockstep.errors import LockstepError
from lockstep.service.api.forms import ErrorForm, StatusForm


def error_document(code: int, status: str, message: str, *, reason: str | None = None) -> ErrorForm:
    """Returns an error in Google's form (google.rpc.Status as JSON), with an ``ErrorInfo`` if `reason` is given."""
    error: StatusForm = {"code": code, "message": message, "status": status}
    if reason is not None:
        error["details"] = [
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "lockstep"}
        ]
    return {"error": error}


def answer(error: LockstepError) -> JSONResponse:
    """Returns the response to a request that failed."""
    document = error_document(error.http_status, error.rpc_status, str(error), reason=error.reason())
    headers = {} if error.retry_after_s is None else {"retry-after": str(math.ceil(error.retry_after_s))}
    return JSONResponse(document, status_code=error.http_status, headers=headers)
