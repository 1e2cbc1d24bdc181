"""What each client's exceptions mean, case by case, with the clients' own classes."""

import asyncio
import errno
import json
import socket
import ssl
from typing import Any

import aiohttp
import botocore.exceptions as boto
import google.auth.exceptions as google
import pytest
import requests
from botocore.parsers import ResponseParserError
from fsspec.exceptions import FSTimeoutError
from gcsfs.retry import ChecksumError, HttpError, validate_response
from s3fs.errors import translate_boto_error

from lockstep.storage.faults import Fault, IncompleteResponseError, describe_fault, describe_unresolved, find_fault


def client_error(code: str, status: int = 400, message: str = "said so") -> boto.ClientError:
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(answer, "GetObject")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def answered(status: int, content: str = "") -> Exception:
    """What gcsfs raises for an answer."""
    try:
        validate_response(status, content, "gs://b/x")
    except Exception as error:
        return error
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("SlowDown", 503, Fault.TRANSIENT),
        ("503", 503, Fault.TRANSIENT),  # HEAD: no body, no code
        ("InternalError", 500, Fault.TRANSIENT),
        ("Whatever", 502, Fault.TRANSIENT),
        ("TooManyRequests", 429, Fault.TRANSIENT),
        ("RequestTimeout", 400, Fault.TRANSIENT),
        ("IncompleteBody", 400, Fault.TRANSIENT),
        ("OperationAborted", 409, Fault.TRANSIENT),
        ("AccessDenied", 403, Fault.REFUSED),
        ("403", 403, Fault.REFUSED),
        ("InvalidObjectState", 403, Fault.OTHER),
        ("InvalidAccessKeyId", 403, Fault.NO_CREDENTIALS),
        ("SignatureDoesNotMatch", 403, Fault.NO_CREDENTIALS),
        ("ExpiredToken", 400, Fault.NO_CREDENTIALS),
        ("NoSuchKey", 404, Fault.MISSING),
        ("NoSuchBucket", 404, Fault.MISSING),
        ("404", 404, Fault.MISSING),
        ("InvalidRange", 416, Fault.BAD_RANGE),
        ("InvalidArgument", 400, Fault.OTHER),
        ("EntityTooLarge", 400, Fault.OTHER),
        ("NotImplemented", 501, Fault.OTHER),
    ],
)
def test_what_an_s3_server_answers(code: str, status: int, expected: Fault) -> None:
    error = client_error(code, status)
    assert find_fault(error) is expected
    assert find_fault(translate_boto_error(error)) is expected, "s3fs hands a translation on"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (429, Fault.TRANSIENT),
        (408, Fault.TRANSIENT),
        (500, Fault.TRANSIENT),
        (502, Fault.TRANSIENT),
        (503, Fault.TRANSIENT),
        (504, Fault.TRANSIENT),
        (401, Fault.NO_CREDENTIALS),
        (403, Fault.REFUSED),
        (404, Fault.MISSING),
        (416, Fault.BAD_RANGE),
        (400, Fault.OTHER),
    ],
)
def test_what_a_gs_server_answers(status: int, expected: Fault) -> None:
    assert find_fault(answered(status)) is expected
    assert find_fault(answered(status, json.dumps({"error": {"message": "said so"}}))) is expected


REQUEST: Any = None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (boto.EndpointConnectionError(endpoint_url="http://h"), Fault.TRANSIENT),
        (boto.ConnectTimeoutError(endpoint_url="http://h"), Fault.TRANSIENT),
        (boto.ReadTimeoutError(endpoint_url="http://h"), Fault.TRANSIENT),
        (boto.ConnectionClosedError(endpoint_url="http://h"), Fault.TRANSIENT),
        (boto.ResponseStreamingError(error="cut"), Fault.TRANSIENT),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), Fault.TRANSIENT),
        (boto.FlexibleChecksumError(error_msg="x"), Fault.TRANSIENT),
        (ResponseParserError("half an answer"), Fault.TRANSIENT),
        (boto.SSLError(endpoint_url="http://h", error="certificate"), Fault.OTHER),
        (boto.NoCredentialsError(), Fault.NO_CREDENTIALS),
        (boto.PartialCredentialsError(provider="p", cred_var="c"), Fault.NO_CREDENTIALS),
        (boto.ParamValidationError(report="x"), Fault.OTHER),
        (aiohttp.ServerDisconnectedError(), Fault.TRANSIENT),
        (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), Fault.TRANSIENT),
        (aiohttp.ClientPayloadError("cut"), Fault.TRANSIENT),
        (aiohttp.SocketTimeoutError(), Fault.TRANSIENT),
        (aiohttp.ClientResponseError(REQUEST, (), status=503), Fault.TRANSIENT),
        (aiohttp.ClientResponseError(REQUEST, (), status=404), Fault.MISSING),
        (HttpError({"code": 429, "message": "slowly"}), Fault.TRANSIENT),
        (caused(HttpError({"code": 401, "message": "x"}), google.RefreshError("x")), Fault.NO_CREDENTIALS),
        (google.RefreshError("x", retryable=True), Fault.TRANSIENT),
        (google.DefaultCredentialsError("x"), Fault.NO_CREDENTIALS),
        (google.TransportError("x"), Fault.TRANSIENT),
        (ChecksumError("x"), Fault.TRANSIENT),
        (requests.ConnectionError("x"), Fault.TRANSIENT),
        (requests.exceptions.SSLError("x"), Fault.OTHER),
        (FSTimeoutError(), Fault.TRANSIENT),
        (TimeoutError(), Fault.TRANSIENT),
        (asyncio.IncompleteReadError(b"", 1), Fault.TRANSIENT),
        (json.JSONDecodeError("x", "y", 0), Fault.TRANSIENT),
        (ssl.SSLCertVerificationError("self-signed"), Fault.OTHER),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), Fault.TRANSIENT),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), Fault.UNKNOWN_HOST),
        (IncompleteResponseError("1 of 2"), Fault.TRANSIENT),
        (ConnectionResetError(), Fault.TRANSIENT),
        (OSError(errno.ESTALE, "stale file handle"), Fault.TRANSIENT),
        (OSError(errno.EACCES, "Permission denied"), Fault.REFUSED),
        (OSError(errno.EPERM, "Operation not permitted"), Fault.REFUSED),
        (OSError(errno.ENOENT, "No such file"), Fault.MISSING),
        (OSError(errno.ENOSPC, "No space left on device"), Fault.OTHER),
        (OSError(errno.EIO, "Input/output error"), Fault.OTHER),
        (ValueError("x"), Fault.OTHER),
    ],
)
def test_what_clients_and_systems_raise(error: Exception, expected: Fault) -> None:
    assert find_fault(error) is expected


def unresolved(number: int = socket.EAI_NONAME) -> OSError:
    return socket.gaierror(number, "nobody knows")


def met(error: Exception, first: Exception) -> Exception:
    """An error that was raised while another was handled, which is no cause of it."""
    error.__context__ = first
    return error


AIOHTTP: Any = aiohttp.client_reqrep.ConnectionKey("store.invalid", 443, True, True, None, None, None)
POST = requests.Request("POST", "https://accounts.invalid/token").prepare()


@pytest.mark.parametrize(
    ("error", "host"),
    [
        (caused(aiohttp.ClientConnectorDNSError(AIOHTTP, unresolved()), unresolved()), "store.invalid"),
        (met(boto.EndpointConnectionError(endpoint_url="https://b.store.invalid/x"), unresolved()), "b.store.invalid"),
        (
            caused(google.TransportError("x"), met(requests.ConnectionError("x", request=POST), unresolved())),
            "accounts.invalid",
        ),
        (unresolved(), "the store"),
    ],
    ids=["aiohttp", "botocore", "requests", "system"],
)
def test_a_name_that_nobody_knows_is_said_and_lasts(error: Exception, host: str) -> None:
    assert find_fault(error) is Fault.UNKNOWN_HOST
    assert describe_unresolved(error) == f"the host {host} was not found: nobody knows"


def test_a_name_server_that_is_silent_may_answer_soon() -> None:
    error = met(boto.EndpointConnectionError(endpoint_url="https://b.store.invalid/x"), unresolved(socket.EAI_AGAIN))
    assert find_fault(error) is Fault.TRANSIENT
    assert describe_unresolved(error) == "the host b.store.invalid was not found: nobody knows"


def test_what_is_no_matter_of_names_is_not_said_to_be() -> None:
    error = boto.EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
    assert describe_unresolved(met(error, ConnectionRefusedError())) is None
    hidden = met(ValueError("x"), unresolved())
    hidden.__suppress_context__ = True
    assert (find_fault(hidden), describe_unresolved(hidden)) == (Fault.OTHER, None)


def test_a_loop_of_causes_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert find_fault(first) is Fault.OTHER


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (translate_boto_error(client_error("SlowDown", 503, "Reduce it.")), "Reduce it (SlowDown, HTTP 503)"),
        (translate_boto_error(client_error("404", 404, "Not Found")), "Not Found (HTTP 404)"),
        (answered(503), "HTTP 503"),
        (answered(429, json.dumps({"error": {"message": "Too fast."}})), "Too fast (HTTP 429)"),
        (answered(403, json.dumps({"error": {"message": "may not"}})), "Forbidden: gs://b/x may not"),
        (FSTimeoutError(), "no answer in time"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (KeyError(), "KeyError"),
    ],
)
def test_faults_are_said_in_a_line(error: Exception, text: str) -> None:
    assert describe_fault(error) == text
