"""Responses for errors: in Google's form, or in that of the Open Inference Protocol for its paths."""

from __future__ import annotations

import math
import re
from typing import Final

from fastapi.responses import JSONResponse

from lockstep.errors import LockstepError
from lockstep.service.api.forms import ErrorForm, InferenceErrorForm, StatusForm

_INFERENCE_PATH: Final = re.compile(r"/v1/projects/[^/]+/v2(/.*)?", re.DOTALL)


def error_document(code: int, status: str, message: str, *, reason: str | None = None) -> ErrorForm:
    """Returns an error in Google's form (google.rpc.Status as JSON), with an ``ErrorInfo`` if `reason` is given."""
    error: StatusForm = {"code": code, "message": message, "status": status}
    if reason is not None:
        error["details"] = [
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "lockstep"}
        ]
    return {"error": error}


def error_content(
    code: int, status: str, message: str, *, path: str, reason: str | None = None
) -> ErrorForm | InferenceErrorForm:
    """Returns the content of a response that reports an error, in the form that the clients of a path read."""
    if _INFERENCE_PATH.fullmatch(path):
        return {"error": message}
    return error_document(code, status, message, reason=reason)


def answer(error: LockstepError, *, path: str = "") -> JSONResponse:
    """Returns the response to a request that failed. It says with ``Retry-After`` when a retry makes sense.

    Args:
        error: the error.
        path: the path of the request; empty for one whose errors have Google's form.
    """
    document = error_content(error.http_status, error.rpc_status, str(error), path=path, reason=error.reason())
    headers = None if error.retry_after_s is None else {"retry-after": str(math.ceil(error.retry_after_s))}
    return JSONResponse(document, status_code=error.http_status, headers=headers)
