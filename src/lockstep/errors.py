"""The exceptions of Lockstep: every error that a user can get is a class here.

Each class has an HTTP status, a Google API status (the name of a ``google.rpc.Code``) and a process exit code. The REST
interface and the command line take them from the class, so they agree without tables of their own. `ExitCode` has all
exit codes: those of BSD's ``sysexits.h`` if it has a fitting one, and Lockstep's own from 10 on. Where a retry makes
sense, the class also has the time after which it does, in seconds.

A message is one line: what was wrong, what was received, what is allowed, and what to do.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import ClassVar, final


@final
class ExitCode(IntEnum):
    """Every exit code of the command line, and of the processes that Lockstep starts.

    Those from 64 to 78 are those of BSD's ``sysexits.h``. Two commands return the exit code of the program that they
    run instead: ``lockstep exec`` and ``lockstep local train``.
    """

    SUCCESS = 0
    """The command did what it was asked to do."""
    NO = 1
    """The answer is no: a step does not fit (`lockstep plan`), or you declined a question."""
    USAGE = 2
    """The command line is wrong: an unknown command or option, a missing argument, or a value of the wrong type."""
    JOB_FAILED = 10
    """The job failed, and the command waited for its end."""
    CONFLICT = 11
    """The thing exists already, or somebody changed it at the same time."""
    NOT_FOUND = 12
    """The service has no such job, model, version, key or secret."""
    JOBS_RUNNING = 13
    """The service was told to stop while jobs are running."""
    ENGINE = 14
    """The engine (Ray) could not be started or reached, or lost something that it kept."""
    BACKEND = 15
    """Keras runs on another backend than JAX, or the devices that a strategy needs do not exist."""
    WRONG_STATE = 16
    """The request is not possible in the present state, such as a shell in a job that has ended."""
    OVERLOADED = 17
    """A server has too many waiting requests. Try again later."""
    MODEL = 18
    """A saved model could not be loaded, run, exported or deployed."""
    PEER_LOST = 19
    """Another process of the job died or stopped responding, so this one could not continue."""
    STORAGE_PERMISSION = 20
    """The bucket denies access."""
    PERMISSION_DENIED = 21
    """Your key is valid, but does not permit the request."""
    BODY_TOO_LARGE = 22
    """The request is larger than the server accepts."""
    CONTAINER_ENGINE = 23
    """There is no podman or docker, or a command of it failed."""
    IMAGE = 24
    """The container image does not exist, may not be pulled, or cannot be run or built."""
    UNIMPLEMENTED = 25
    """AI Platform has this feature, but Lockstep does not; the message says what to use instead."""
    DIVERGENCE = 30
    """The loss or a gradient of a training step was not finite, and training stopped."""
    MEDIA_TYPE = 26
    """The request's content type is not JSON."""
    DEADLINE = 27
    """The time that the client waits was over before there was an answer."""
    RATE_LIMIT = 28
    """Your key, or your project, has sent more requests than its rate allows. Try again later."""
    JOB_CANCELLED = 29
    """The job was cancelled, and the command waited for its end."""
    ROUTINE = 31
    """A custom prediction routine failed."""
    INVALID_INPUT = 64
    """A value is not valid: of a flag, an argument, or a file that the command reads."""
    CORRUPT_DATA = 65
    """Data is damaged, or in another format than it says."""
    MISSING_INPUT = 66
    """A file, folder or object that you named does not exist."""
    UNAVAILABLE = 69
    """The service, or something that it needs, does not respond, or `--timeout` is over. Try again later."""
    INTERNAL = 70
    """Something unexpected happened: an error in Lockstep. Please report it."""
    PORT_IN_USE = 71
    """A network port is in use."""
    STORAGE_WRITE = 73
    """A bucket or file could not be written."""
    STORAGE = 74
    """A bucket or file could not be read or listed."""
    ALREADY_RUNNING = 75
    """Another service runs on this home."""
    AUTHENTICATION = 77
    """There is no key, or it is not valid."""
    CONFIG = 78
    """A configuration file or an environment variable is not valid."""
    INTERRUPTED = 130
    """You interrupted the command: Ctrl-C, or Ctrl-D at a question."""


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
    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL
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
    exit_code = ExitCode.INVALID_INPUT


class ConfigError(InvalidInputError):
    """A configuration file or an environment variable has an unknown key or a value of the wrong type."""

    exit_code = ExitCode.CONFIG


class CorruptDataError(LockstepError):
    """Data is corrupt: a truncated record, a checksum that does not match, or a file of another format."""

    http_status = 422
    rpc_status = "DATA_LOSS"
    exit_code = ExitCode.CORRUPT_DATA


class MissingInputError(LockstepError):
    """A named file, folder or object does not exist."""

    http_status = 404
    rpc_status = "NOT_FOUND"
    exit_code = ExitCode.MISSING_INPUT


class NotFoundError(LockstepError):
    """A job, model, version or other resource of the service does not exist."""

    http_status = 404
    rpc_status = "NOT_FOUND"
    exit_code = ExitCode.NOT_FOUND


class ConflictError(LockstepError):
    """The resource exists already, or was changed since it was read."""

    http_status = 409
    rpc_status = "ALREADY_EXISTS"
    exit_code = ExitCode.CONFLICT


class WrongStateError(LockstepError):
    """The request is not possible in the resource's current state."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = ExitCode.WRONG_STATE


class UnimplementedError(LockstepError):
    """The contract has this feature, but Lockstep does not implement it; the message says what to use instead."""

    http_status = 501
    rpc_status = "UNIMPLEMENTED"
    exit_code = ExitCode.UNIMPLEMENTED


class BodyTooLargeError(InvalidInputError):
    """The body of a request is larger than the server accepts."""

    http_status = 413
    exit_code = ExitCode.BODY_TOO_LARGE


class MediaTypeError(InvalidInputError):
    """The content type of a request's body is not JSON."""

    http_status = 415
    exit_code = ExitCode.MEDIA_TYPE


class AuthenticationError(LockstepError):
    """The request has no key, or its key is not valid."""

    http_status = 401
    rpc_status = "UNAUTHENTICATED"
    exit_code = ExitCode.AUTHENTICATION


class PermissionDeniedError(LockstepError):
    """The key is valid, but does not permit the request."""

    http_status = 403
    rpc_status = "PERMISSION_DENIED"
    exit_code = ExitCode.PERMISSION_DENIED


class UnavailableError(LockstepError):
    """The service, or something that it needs, does not respond."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = ExitCode.UNAVAILABLE
    retry_after_s = 1


class OverloadedError(LockstepError):
    """The server's queue of waiting requests is full."""

    http_status = 429
    rpc_status = "RESOURCE_EXHAUSTED"
    exit_code = ExitCode.OVERLOADED
    retry_after_s = 1


class RateLimitError(OverloadedError):
    """A key, or a project, has sent more requests than its rate allows."""

    exit_code = ExitCode.RATE_LIMIT


class DeadlineError(LockstepError):
    """The time that the client waits is over, before there was an answer."""

    http_status = 504
    rpc_status = "DEADLINE_EXCEEDED"
    exit_code = ExitCode.DEADLINE


class StorageError(LockstepError):
    """A bucket could not be read or listed, for another reason than a missing object."""

    http_status = 502
    rpc_status = "UNAVAILABLE"
    exit_code = ExitCode.STORAGE


class StorageWriteError(StorageError):
    """A bucket could not be written."""

    exit_code = ExitCode.STORAGE_WRITE


class StoragePermissionError(StorageError):
    """A bucket denies access: credentials are missing or invalid, or lack the permission to read, list or write."""

    http_status = 403
    rpc_status = "PERMISSION_DENIED"
    exit_code = ExitCode.STORAGE_PERMISSION


class AlreadyRunningError(LockstepError):
    """Another service is already running on this home."""

    http_status = 409
    rpc_status = "ALREADY_EXISTS"
    exit_code = ExitCode.ALREADY_RUNNING


class PortInUseError(LockstepError):
    """A requested network port is in use."""

    http_status = 409
    rpc_status = "FAILED_PRECONDITION"
    exit_code = ExitCode.PORT_IN_USE


class JobsRunningError(LockstepError):
    """The service was told to shut down while jobs are running."""

    http_status = 409
    rpc_status = "FAILED_PRECONDITION"
    exit_code = ExitCode.JOBS_RUNNING


class JobFailedError(LockstepError):
    """A job failed or was cancelled, and a command or a program waited for its end.

    Attributes:
        log_lines: the last lines of the job's log, if they were read.
    """

    exit_code = ExitCode.JOB_FAILED
    log_lines: tuple[str, ...] = ()


class JobCancelledError(JobFailedError):
    """A job was cancelled, and a command or a program waited for its end."""

    exit_code = ExitCode.JOB_CANCELLED


class EngineError(LockstepError):
    """The engine (Ray) could not be started or reached, or lost something that it kept."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = ExitCode.ENGINE


class BackendError(LockstepError):
    """Keras runs on a backend other than JAX, or the devices that a strategy needs do not exist."""

    exit_code = ExitCode.BACKEND


class DivergenceError(LockstepError):
    """The loss or the gradients of a training step were not finite."""

    exit_code = ExitCode.DIVERGENCE


class ModelError(LockstepError):
    """A saved model could not be loaded or run."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = ExitCode.MODEL


class RoutineError(LockstepError):
    """A custom prediction routine failed, or did not return one prediction for each instance."""

    exit_code = ExitCode.ROUTINE


class PeerLostError(LockstepError):
    """A peer died, failed, stopped responding or never connected, and this process cannot continue without it."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = ExitCode.PEER_LOST


class ContainerEngineError(LockstepError):
    """There is no container engine (podman or docker), or a command of it failed."""

    http_status = 503
    rpc_status = "UNAVAILABLE"
    exit_code = ExitCode.CONTAINER_ENGINE


class ImageError(LockstepError):
    """A container image does not exist, may not be pulled, or cannot be run or built."""

    http_status = 400
    rpc_status = "FAILED_PRECONDITION"
    exit_code = ExitCode.IMAGE
