"""The one exception tree: every error that a person can meet is a class here.

Each class carries its HTTP status, its Google API status (``google.rpc.Code`` name) and its process exit code, so that
the REST interface and the command line say the same thing without a table of their own. Exit codes follow BSD's
``sysexits.h`` where it has a fitting one; Lockstep's own start at 10.

The message form is one line: what was wrong, what was received, what is allowed, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class LockstepError(Exception):
    """Base of all of Lockstep's errors: an internal fault unless a subclass says otherwise.

    Args:
        what: what was wrong, without a full stop.
        received: what was received, if that helps; shown by ``repr``.
        allowed: what is allowed instead: a sentence, or the allowed values.
        action: what the reader can do.
    """

    http_status: ClassVar[int] = 500
    rpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        what: str,
        *,
        received: object = None,
        allowed: str | Iterable[str] | None = None,
        action: str | None = None,
    ) -> None:
        self.what = what
        self.received = received
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else tuple(allowed)
        self.action = action
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [self.what]
        if self.received is not None:
            parts.append(f"received {_shorten(repr(self.received))}")
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
        """Names the class in an answer of the service, as ``google.rpc.ErrorInfo`` does: ``WRONG_STATE``."""
        words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Error"))
        return "_".join(words).upper()


def _shorten(text: str, *, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Returns "did you mean X?" for the candidate nearest to a misspelt word, or None."""
    near = get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None


def counted(number: int, noun: str) -> str:
    """Returns a number of things in words: "1 shard", "1,024 shards", "2 classes"."""
    return f"{number:,} {noun if number == 1 else noun + ('es' if noun.endswith('s') else 's')}"


class InvalidInputError(LockstepError):
    """A value that a person or a program gave is not usable (a flag, a request, an argument)."""

    http_status = 400
    rpc_status = "INVALID_ARGUMENT"
    exit_code = 64


class ConfigError(InvalidInputError):
    """A configuration file or environment variable has an unknown key or a wrong type."""

    exit_code = 78


class CorruptDataError(LockstepError):
    """Data fails its own checks: a truncated record, a checksum that does not match, a file of another format."""

    http_status = 422
    rpc_status = "DATA_LOSS"
    exit_code = 65


class MissingInputError(LockstepError):
    """A file, folder or object that was named does not exist."""

    http_status = 404
    rpc_status = "NOT_FOUND"
    exit_code = 66


class NotFoundError(LockstepError):
    """A job, model, version or other resource of the service does not exist."""

    http_status = 404
    rpc_status = "NOT_FOUND"
    exit_code = 12


class ConflictError(LockstepError):
    """The resource exists already, or changed since it was read."""

    http_status = 409
    rpc_status = "ALREADY_EXISTS"
    exit_code = 11


class WrongStateError(LockstepError):
    """The request does not fit the state that the resource is in."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 16


class UnimplementedError(LockstepError):
    """The contract has it, this version has not; the message says what takes its place."""

    http_status = 501
    rpc_status = "UNIMPLEMENTED"
    exit_code = 25


class BodyTooLargeError(InvalidInputError):
    """A request's body is longer than the server takes."""

    http_status = 413
    exit_code = 22


class MediaTypeError(InvalidInputError):
    """A request's body is said to be something else than JSON."""

    http_status = 415
    exit_code = 26


class AuthenticationError(LockstepError):
    """The request carries no key, or one that is not valid."""

    http_status = 401
    rpc_status = "UNAUTHENTICATED"
    exit_code = 77


class PermissionDeniedError(LockstepError):
    """The key is valid, but not for what was asked for."""

    http_status = 403
    rpc_status = "PERMISSION_DENIED"
    exit_code = 21


class UnavailableError(LockstepError):
    """The service, or something that it needs, does not answer."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 69


class OverloadedError(LockstepError):
    """The server has more requests waiting than it takes."""

    http_status = 429
    rpc_status = "RESOURCE_EXHAUSTED"
    exit_code = 17


class StorageError(LockstepError):
    """A bucket could not be read or listed for a reason other than absence."""

    http_status = 502
    rpc_status = "UNAVAILABLE"
    exit_code = 74


class StorageWriteError(StorageError):
    """A bucket could not be written."""

    exit_code = 73


class StoragePermissionError(StorageError):
    """A bucket refuses to be read, listed or written: credentials are missing or not valid, or not enough."""

    http_status = 403
    rpc_status = "PERMISSION_DENIED"
    exit_code = 20


class AlreadyRunningError(LockstepError):
    """Another service runs on this home already."""

    http_status = 409
    rpc_status = "ALREADY_EXISTS"
    exit_code = 75


class PortInUseError(LockstepError):
    """A network port that was asked for is taken."""

    http_status = 409
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 71


class JobsRunningError(LockstepError):
    """The service was asked to go down while jobs run."""

    http_status = 409
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 13


class JobFailedError(LockstepError):
    """A job whose end was waited for did not succeed."""

    exit_code = 10


class EngineError(LockstepError):
    """The engine (Ray) could not be started or reached, or lost something it held."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 14


class BackendError(LockstepError):
    """Keras runs on another backend than JAX, or the devices that a strategy needs are not there."""

    exit_code = 15


class ModelError(LockstepError):
    """A saved model could not be loaded or run."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 18


class PeerLostError(LockstepError):
    """Another process of the same training run died, went silent, failed or never came: this one cannot go on alone."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 19


class ContainerEngineError(LockstepError):
    """No container engine (podman or docker) is there, or it did not do what it was asked."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = 23


class ImageError(LockstepError):
    """A container image does not exist, may not be had, or cannot be run or built."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = 24
