"""Classifies the exceptions of all buckets' clients into faults, with one pure function: `find_fault`.

The clients are optional packages, so their exceptions are recognized by the names of their classes and by the data they
carry: an HTTP status, or the store's own code such as "SlowDown".
"""

from __future__ import annotations

import enum
import errno
import socket
from collections.abc import Iterator
from typing import Any, Final, cast, final
from urllib.parse import urlsplit


@final
class Fault(enum.Enum):
    """The category of an exception, which decides whether to retry and which error to raise."""

    TRANSIENT = "the store throttles, fails or cannot be reached for now: the same call may succeed soon"
    MISSING = "there is no such object or bucket"
    REFUSED = "these credentials, or this user, may not do it"
    NO_CREDENTIALS = "there are no credentials, or the store does not know or accept them"
    UNKNOWN_HOST = "no server is known by the name: to try again would not help"
    BAD_RANGE = "the range of bytes begins at or behind the object's end"
    OTHER = "anything else: to try again would not help"


@final
class IncompleteResponseError(OSError):
    """Raised if a store's response to a read does not have the number of bytes that the object has there."""


_TRANSIENT_ERRNOS: Final = frozenset(
    getattr(errno, name)
    for name in [
        "EAGAIN",
        "EBUSY",
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EINTR",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "EPIPE",
        "EREMOTEIO",
        "ESHUTDOWN",
        "ESTALE",
        "ETIMEDOUT",
    ]
    if hasattr(errno, name)
)
_TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 509, *range(520, 530)})
# Codes of Amazon S3 and compatible stores. Some of them come with HTTP 400 or 403.
_TRANSIENT_CODES: Final = frozenset(
    [
        "BadDigest",
        "BandwidthLimitExceeded",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "XAmzContentSHA256Mismatch",
    ]
)
_CREDENTIAL_CODES: Final = frozenset(
    [
        "CredentialsNotSupported",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidToken",
        "MissingSecurityHeader",
        "NotSignedUp",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    ]
)
_REFUSED_CODES: Final = frozenset(["AccessDenied", "AccountProblem", "AllAccessDisabled", "Forbidden", "InvalidPayer"])
_MISSING_CODES: Final = frozenset({"NoSuchBucket", "NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound"})

_TRANSIENT_CLASSES: Final = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "aiohttp.http_exceptions.BadHttpMessage",
        "asyncio.exceptions.IncompleteReadError",
        "botocore.exceptions.ChecksumError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.FlexibleChecksumError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.IncompleteReadError",
        "botocore.parsers.ResponseParserError",
        "fsspec.exceptions.FSTimeoutError",
        "gcsfs.retry.ChecksumError",
        "google.auth.exceptions.TransportError",
        "http.client.HTTPException",
        "json.decoder.JSONDecodeError",  # an incomplete response, or a proxy's page instead of the response
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.ContentDecodingError",
        "requests.exceptions.Timeout",
    }
)
_CREDENTIAL_CLASSES: Final = frozenset(
    {
        "botocore.exceptions.CredentialRetrievalError",
        "botocore.exceptions.NoAuthTokenError",
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.PartialCredentialsError",
        "botocore.exceptions.SSOError",
        "botocore.exceptions.TokenRetrievalError",
        "google.auth.exceptions.DefaultCredentialsError",
        "google.auth.exceptions.RefreshError",
    }
)
# An untrusted certificate stays untrusted: a retry would not help.
_LASTING_CLASSES: Final = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectorCertificateError",
        "aiohttp.client_exceptions.ClientConnectorSSLError",
        "botocore.exceptions.SSLError",
        "requests.exceptions.SSLError",
        "ssl.SSLCertVerificationError",
    }
)


def find_fault(error: BaseException) -> Fault:
    """Classifies an exception of a bucket's client.

    Clients wrap the exceptions that they catch, and lose information. So the deepest exception in the chain of causes
    that can be classified decides.

    Args:
        error: the exception of a client or of the operating system.
    """
    unresolved = _find_unresolved(error)
    if unresolved is not None:  # EAI_AGAIN: the name server does not respond now, but may respond later
        return Fault.TRANSIENT if unresolved.errno == socket.EAI_AGAIN else Fault.UNKNOWN_HOST
    faults = (_find_own_fault(link) for link in reversed(list(_causes(error))))
    return next((fault for fault in faults if fault is not None), Fault.OTHER)


def may_succeed_later(error: BaseException) -> bool:
    """Whether the same request may succeed later: after a transient fault, or when a full disk has space again.

    Args:
        error: the exception of a bucket.
    """
    full = (errno.ENOSPC, errno.EDQUOT)
    is_full = any(isinstance(link, OSError) and link.errno in full for link in _causes(error))
    return is_full or find_fault(error) is Fault.TRANSIENT


def describe_fault(error: BaseException) -> str:
    """Describes an exception in one line: the store's or the system's message, the store's code, the HTTP status."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = " ".join(reason.split()).strip(" ,.")
    status, code = next(
        (found for link in _causes(error) if (found := _status_and_code(link)) != (None, "")), (None, "")
    )
    if status is not None:
        reason = reason.removesuffix(f"{status}").strip(" ,.")  # gcsfs ends its messages with the status
    said = [code] if code and not code.isdecimal() and code not in reason else []
    said += [f"HTTP {status}"] if status is not None else []
    if not reason:
        reason = "no answer in time" if isinstance(error, TimeoutError) else "" if said else type(error).__name__
    return " ".join(part for part in (reason, f"({', '.join(said)})" if reason and said else ", ".join(said)) if part)


def describe_unresolved(error: BaseException) -> str | None:
    """Describes in one line which host name could not be resolved; None if the exception has another cause."""
    unresolved = _find_unresolved(error)
    if unresolved is None:
        return None
    hosts = (_host_of(link) for link in _causes(error, with_contexts=True))
    host = next((host for host in hosts if host), "the store")
    return f"the host {host} was not found: {unresolved.strerror or unresolved}"


def _find_unresolved(error: BaseException) -> socket.gaierror | None:
    """Returns the failed resolution of a host name that led to an exception, if any.

    For exceptions of botocore and requests, it is the ``__context__``, not the ``__cause__``.
    """
    links = _causes(error, with_contexts=True)
    return next((link for link in links if isinstance(link, socket.gaierror)), None)


def _host_of(error: BaseException) -> str:
    """Returns the host name that a client's exception carries; "" if it carries none."""
    if _is_one_of(error, {"botocore.exceptions.EndpointConnectionError"}):
        return urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", ""))).hostname or ""
    if _is_one_of(error, {"aiohttp.client_exceptions.ClientConnectorError"}):
        return str(getattr(error, "host", ""))
    if _is_one_of(error, {"requests.exceptions.ConnectionError"}):
        return urlsplit(str(getattr(getattr(error, "request", None), "url", ""))).hostname or ""
    return ""


def _causes(error: BaseException, *, with_contexts: bool = False) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (link.__context__ if with_contexts and not link.__suppress_context__ else None)


def _find_own_fault(error: BaseException) -> Fault | None:
    """Classifies one exception without its causes; None if it cannot be classified."""
    if _is_one_of(error, _LASTING_CLASSES):
        return Fault.OTHER
    if _is_one_of(error, _CREDENTIAL_CLASSES):
        # Google's exceptions have an attribute that says whether to retry.
        return Fault.TRANSIENT if getattr(error, "retryable", False) is True else Fault.NO_CREDENTIALS
    status, code = _status_and_code(error)
    if status is not None or code:
        return _find_fault_of_response(status, code)
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return Fault.MISSING
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and str(error).startswith("Forbidden: ")):
        return Fault.REFUSED  # gcsfs raises "Forbidden: URL" without an errno
    if isinstance(error, IncompleteResponseError | TimeoutError | ConnectionError | EOFError):
        return Fault.TRANSIENT
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return Fault.TRANSIENT
    return Fault.TRANSIENT if _is_one_of(error, _TRANSIENT_CLASSES) else None


def _find_fault_of_response(status: int | None, code: str) -> Fault:
    """Classifies a store's response. The store's own code is more specific than the HTTP status."""
    if code in _TRANSIENT_CODES:
        return Fault.TRANSIENT
    if code in _CREDENTIAL_CODES or status == 401:
        return Fault.NO_CREDENTIALS
    if code in _REFUSED_CODES or (status == 403 and code != "InvalidObjectState"):  # the latter: an archived object
        return Fault.REFUSED
    if code in _MISSING_CODES or status == 404:
        return Fault.MISSING
    if code == "InvalidRange" or status == 416:
        return Fault.BAD_RANGE
    return Fault.TRANSIENT if status in _TRANSIENT_STATUSES else Fault.OTHER


def _status_and_code(error: BaseException) -> tuple[int | None, str]:
    """Returns the HTTP status and the store's code that an exception carries; None and "" if it carries none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's ClientError
        fields = cast("dict[str, Any]", response)
        code = str(fields.get("Error", {}).get("Code", ""))
        status = fields.get("ResponseMetadata", {}).get("HTTPStatusCode")
        # In a response without a body, as to HEAD, botocore puts the status into the code.
        return _as_status(code if status is None else status), code
    if _is_one_of(error, {"gcsfs.retry.HttpError"}):
        return _as_status(getattr(error, "code", None)), ""
    if _is_one_of(error, {"aiohttp.client_exceptions.ClientResponseError"}):
        return _as_status(getattr(error, "status", None)), ""
    return None, ""


def _as_status(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) == 3 else None


def _is_one_of(error: BaseException, names: frozenset[str] | set[str]) -> bool:
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(error).__mro__)
