"""The exceptions of Lockstep: every error that a user can get is a class here.

Each class has an HTTP status, a Google API status (the name of a ``google.rpc.Code``) and a process exit code. The REST
interface and the command line take them from the class, so they agree without tables of their own. Exit codes are
those of BSD's ``sysexits.h`` if it has a fitting one; Lockstep's own exit codes start at 10. Where a retry makes sense,
the class also has the time after which it does, in seconds.

A message is one line: what was wrong, what was received, what is allowed, and what to do.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class LockstepError(Exception):
    """Base class of all errors of Lockstep: an internal error, unless a subclass says otherwise.

    Args:
        what: what was wrong, without a full stop.
        received: the value that was received, if that helps; the message shows its ``repr``.
        allowed: what is allowed instead: a sentence, or the allowed values.
        action: what the user can do about it.
        retry_after_s: the least time after which the same request may succeed, in seconds; None for that of the class.

    Attributes:
        retry_after_s: the least time after which the same request may succeed, in seconds; None if it would fail again.
    """

    http_status: ClassVar[int] = 500
    rpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70
    retry_after_s: float | None = None

    def __init__(
        self,
        what: str,
        *,
        received: object = None,
        allowed: str | Iterable[str] | None = None,
        action: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.what = what
        self.received = received
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else tuple(allowed)
        self.action = action
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [self.what]
        if self.received is not None:
            parts.append(f"received {_shorten(_spell(self.received))}")
        if self.allowed is not None:
            allowed = self.allowed if isinstance(self.allowed, str) else ", ".join(self.allowed)
            parts.append(f"allowed: {allowed}")
        if self.action is not None:
            parts.append(self.action)
        return " ".join("; ".join(parts).split())

    def __str__(self) -> str:
        return self._message()

    @classmethod
    def reason(cls) -> str:
        """Returns the error's name for the service's responses, in the style of ``google.rpc.ErrorInfo``.

        For example, ``WRONG_STATE`` for `WrongStateError`.
        """
        words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Error"))
        return "_".join(words).upper()


def _spell(value: object) -> str:
    """Returns the ``repr`` of a value; without its inner parts if it is nested more deeply than Python can print."""
    try:
        return repr(value)
    except RecursionError:
        return reprlib.repr(value)


def _shorten(text: str, *, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Returns "did you mean X?" with the candidate most similar to a misspelt word, or None if none is similar."""
    near = get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None


def counted(number: int, noun: str) -> str:
    """Returns a number of things in words: "1 shard", "1,024 shards", "2 classes"."""
    return f"{number:,} {noun if number == 1 else noun + ('es' if noun.endswith('s') else 's')}"


class InvalidInputError(LockstepError):
    """A value from a user or a program is not valid: a flag, a request, or an argument."""

    http_status = 400
    rpc_status = "INVALID_ARGUMENT"
    exit_code = 64


class ConfigError(InvalidInputError):
    """A configuration file or an environment variable has an unknown key or a value of the wrong type."""

    exit_code = 78


class CorruptDataError(LockstepError):
    """Data is corrupt: a truncated record, a checksum that does not match, or a file of another format."""

    http_status = 422
    rpc_status = "DATA_LOSS"
    exit_code = 65


class MissingInputError(LockstepError):
    """A named file, folder or object does not exist."""

    http_status = 404
    rpc_status = "NOT_FOUND"
    exit_code = 66


class NotFoundError(LockstepError):
    """A job, model, version or other resource of the service does not exist."""

    http_status = 404
    rpc_status = "NOT_FOUND"
    exit_code = 12


class ConflictError(LockstepError):
    """The resource exists already, or was changed since it was read."""

    http_status = 409
    rpc_status = "ALREADY_EXISTS"
    exit_code = 11


class WrongStateError(LockstepError):
    """The request is not possible in the resource's current state."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 16


class UnimplementedError(LockstepError):
    """The contract has this feature, but Lockstep does not implement it; the message says what to use instead."""

    http_status = 501
    rpc_status = "UNIMPLEMENTED"
    exit_code = 25


class BodyTooLargeError(InvalidInputError):
    """The body of a request is larger than the server accepts."""

    http_status = 413
    exit_code = 22


class MediaTypeError(InvalidInputError):
    """The content type of a request's body is not JSON."""

    http_status = 415
    exit_code = 26


class AuthenticationError(LockstepError):
    """The request has no key, or its key is not valid."""

    http_status = 401
    rpc_status = "UNAUTHENTICATED"
    exit_code = 77


class PermissionDeniedError(LockstepError):
    """The key is valid, but does not permit the request."""

    http_status = 403
    rpc_status = "PERMISSION_DENIED"
    exit_code = 21


class UnavailableError(LockstepError):
    """The service, or something that it needs, does not respond."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 69
    retry_after_s = 1


class OverloadedError(LockstepError):
    """The server's queue of waiting requests is full."""

    http_status = 429
    rpc_status = "RESOURCE_EXHAUSTED"
    exit_code = 17
    retry_after_s = 1


class RateLimitError(OverloadedError):
    """A key, or a project, has sent more requests than its rate allows."""

    exit_code = 28


class DeadlineError(LockstepError):
    """The time that the client waits is over, before there was an answer."""

    http_status = 504
    rpc_status = "DEADLINE_EXCEEDED"
    exit_code = 27


class StorageError(LockstepError):
    """A bucket could not be read or listed, for another reason than a missing object."""

    http_status = 502
    rpc_status = "UNAVAILABLE"
    exit_code = 74


class StorageWriteError(StorageError):
    """A bucket could not be written."""

    exit_code = 73


class StoragePermissionError(StorageError):
    """A bucket denies access: credentials are missing or invalid, or lack the permission to read, list or write."""

    http_status = 403
    rpc_status = "PERMISSION_DENIED"
    exit_code = 20


class AlreadyRunningError(LockstepError):
    """Another service is already running on this home."""

    http_status = 409
    rpc_status = "ALREADY_EXISTS"
    exit_code = 75


class PortInUseError(LockstepError):
    """A requested network port is in use."""

    http_status = 409
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 71


class JobsRunningError(LockstepError):
    """The service was told to shut down while jobs are running."""

    http_status = 409
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 13


class JobFailedError(LockstepError):
    """A job did not succeed, and a command or a program waited for its end.

    Attributes:
        log_lines: the last lines of the job's log, if they were read.
    """

    exit_code = 10
    log_lines: tuple[str, ...] = ()


class JobCancelledError(JobFailedError):
    """A job was cancelled, and a program waited for its end."""

    exit_code = 33


class EngineError(LockstepError):
    """The engine (Ray) could not be started or reached, or lost something that it kept."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 14


class BackendError(LockstepError):
    """Keras runs on a backend other than JAX, or the devices that a strategy needs do not exist."""

    exit_code = 15


class ModelError(LockstepError):
    """A saved model could not be loaded or run."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 18


class RoutineError(LockstepError):
    """A custom prediction routine failed, or did not return one prediction for each instance."""

    exit_code = 31


class PeerLostError(LockstepError):
    """A peer died, failed, stopped responding or never connected, and this process cannot continue without it."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 19


class ContainerEngineError(LockstepError):
    """There is no container engine (podman or docker), or a command of it failed."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 23


class ImageError(LockstepError):
    """A container image does not exist, may not be pulled, or cannot be run or built."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 24
