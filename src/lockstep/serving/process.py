"""Starts, watches and ends a prediction server's process, which outlives whoever started it.

The server is a process of its own session: killing the service, or its terminal, leaves it to serve. A `ServerHandle`
round-trips through JSON, so that a service that starts again adopts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

from lockstep.errors import CorruptDataError, LockstepError, StorageWriteError
from lockstep.jobs.orders import SPOOL_VARIABLE
from lockstep.processes import ProcessIdentity, find_marked

READY_FILE: Final = "ready.json"
TOKEN_FILE: Final = "token"  # noqa: S105 (a file's name)
LOG_FILE: Final = "server.log"
RECORD_FILE: Final = "server.json"
LOADING_PREFIX: Final = "lockstep-model-"
"""How folders begin that a model's file lies in while the server loads it; one that dies then leaves it."""

LOG_TAIL_BYTES: Final = 16384
KILL_TIMEOUT_S: Final = 5.0

_KEPT_VARIABLES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "LOCKSTEP_HOME", "NPROC"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
_KEPT_PREFIXES: Final = ("LC_", "XDG_", "AWS_", "GOOGLE_", "CLOUDSDK_", "FSSPEC_", "JAX_", "XLA_")


@final
@dataclass(frozen=True, kw_only=True)
class ServerHandle:
    """A prediction server that was started.

    Attributes:
        process: its process.
        folder: where its ready file, token and log lie.
        model_url: bucket URL of its model.
    """

    process: ProcessIdentity
    folder: str
    model_url: str

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    @property
    def ready_file(self) -> Path:
        """Written by the server when it takes requests."""
        return Path(self.folder) / READY_FILE

    @property
    def token_file(self) -> Path:
        """Holds the server's bearer token, mode 0600."""
        return Path(self.folder) / TOKEN_FILE

    @property
    def log_file(self) -> Path:
        """What the server printed."""
        return Path(self.folder) / LOG_FILE

    @property
    def record_file(self) -> Path:
        """Holds this handle as JSON while the server may run."""
        return Path(self.folder) / RECORD_FILE

    def to_json(self) -> dict[str, object]:
        """Returns a JSON object that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Reads back what `to_json` gave.

        Raises:
            CorruptDataError: it is something else.
        """
        try:
            return cls(
                process=ProcessIdentity.from_json(document["process"]),
                folder=str(document["folder"]),
                model_url=str(document["model_url"]),
            )
        except (KeyError, TypeError, CorruptDataError):
            raise CorruptDataError("not the record of a prediction server", received=document) from None


@final
@dataclass(frozen=True, kw_only=True)
class ServerStarting:
    """The server loads and compiles its model."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerReady:
    """The server takes requests.

    Attributes:
        url: where, such as ``http://127.0.0.1:40123``.
        token: the bearer token of ``POST /predict``.
        inputs: the model's inputs, each ``{"name", "shape", "dtype"}``.
    """

    url: str
    token: str = field(repr=False)
    inputs: tuple[Mapping[str, object], ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class ServerFailed:
    """The server does not run.

    Attributes:
        reason: the last line that it printed.
    """

    reason: str


ServerStatus = ServerStarting | ServerReady | ServerFailed


def start_server(*, model_url: str, folder: Path, python: str = sys.executable) -> ServerHandle:
    """Starts a prediction server in a session of its own, and does not wait for it.

    It gets an environment without the caller's secrets (but for the credentials of buckets), a fresh token, and the
    folder for its files, which it works in. A server that still runs in the folder is ended first: its starter may have
    died before it could keep the handle.

    Args:
        model_url: bucket URL of a ``.keras`` file.
        folder: the server's own folder; it is made, and what an earlier server left in it is removed. One caller at a
            time starts servers in it.
        python: the Python to run it with.

    Raises:
        StorageWriteError: the folder cannot be written, or no process can be started.
        LockstepError: an earlier server in the folder does not end.
    """
    folder = folder.absolute()
    ready_file, token_file, log_file = (folder / name for name in (READY_FILE, TOKEN_FILE, LOG_FILE))
    command = [
        python,
        "-P",  # the working folder is not a place to import from
        "-m",
        "lockstep.serving",
        f"--model-url={model_url}",
        f"--ready-file={ready_file}",
        f"--token-file={token_file}",
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stop_all(folder=folder)
        for path in (ready_file, token_file, log_file):
            path.unlink(missing_ok=True)
        _remove_models(folder)
        _write_private(token_file, secrets.token_urlsafe(32))
        # posix_spawn rather than subprocess: nobody keeps an object for a process that outlives this one.
        pid = os.posix_spawn(
            python,
            command,
            # Marked, so that one whose starter dies before it has kept the handle is found by `stop_all`.
            {**server_environment(os.environ), SPOOL_VARIABLE: str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise StorageWriteError(f"cannot start a prediction server in {folder}: {error}") from error
    process = ProcessIdentity.of(pid)
    assert process is not None, "this process is its parent, and has not reaped it, even if it has ended"
    handle = ServerHandle(process=process, folder=str(folder), model_url=model_url)
    try:
        _write_private(handle.record_file, json.dumps(handle.to_json()))
    except OSError as error:
        stop(handle)
        raise StorageWriteError(f"cannot write {handle.record_file}: {error.strerror}") from error
    return handle


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what a prediction server gets: the variables that it needs, and no secrets but buckets' credentials.

    Args:
        env: the variables of the process that starts it.
    """
    kept = {name: value for name, value in env.items() if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)}
    return {**kept, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}


def poll(handle: ServerHandle) -> ServerStatus:
    """Says how a server is. Does not block, and reaps the process if it was this process's child and has ended.

    Args:
        handle: the server.
    """
    if not handle.process.is_alive:
        _reap(handle.process)
        return ServerFailed(reason=_last_line(handle.log_file) or "the prediction server has ended without a word")
    try:
        ready = json.loads(handle.ready_file.read_text("utf-8"))
        if ready["pid"] != handle.pid:
            return ServerStarting()
        token = handle.token_file.read_text("utf-8").strip()
        return ServerReady(url=str(ready["url"]), token=token, inputs=tuple(ready["input"]))
    except FileNotFoundError:
        return ServerStarting()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ServerFailed(reason=f"the prediction server's files cannot be read: {error}")


def stop(handle: ServerHandle, *, grace_s: float = 10.0) -> None:
    """Ends a server: asks first, kills after a while. Idempotent, and blind to another process with its id.

    Args:
        handle: the server.
        grace_s: how long it has to end by itself, in seconds.

    Raises:
        LockstepError: it goes on even so.
    """
    _end(handle.process, grace_s=grace_s)
    for path in (handle.ready_file, handle.token_file, handle.record_file):
        path.unlink(missing_ok=True)
    _remove_models(Path(handle.folder))


def stop_all(*, folder: Path, grace_s: float = 10.0) -> None:
    """Ends every server whose files lie in a folder or beneath it, whoever started it and kept its handle or not.

    Args:
        folder: a server's own folder, or one above those of several.
        grace_s: how long each has to end by itself, in seconds.

    Raises:
        LockstepError: one goes on even so.
    """
    for record_file in folder.rglob(RECORD_FILE):
        _stop_recorded(record_file)
    # A starter that was killed after the start and before the record has left a server that only its mark tells of.
    beneath = folder.resolve()
    for process in find_marked(SPOOL_VARIABLE, accept=lambda mark: Path(mark).resolve().is_relative_to(beneath)):
        _end(process, grace_s=grace_s)


def _stop_recorded(record_file: Path) -> None:
    try:
        earlier = ServerHandle.from_json(json.loads(record_file.read_text("utf-8")))
    except FileNotFoundError:
        return
    except (ValueError, CorruptDataError):
        # Cut short while it was written, a moment after the start: its mark tells of the server.
        record_file.unlink()
        return
    stop(earlier)


def _remove_models(folder: Path) -> None:
    for loading in folder.glob(f"{LOADING_PREFIX}*"):
        shutil.rmtree(loading, ignore_errors=True)


def _end(process: ProcessIdentity, *, grace_s: float) -> None:
    process.send(signal.SIGTERM)
    if not process.wait(timeout_s=grace_s):
        process.send(signal.SIGKILL)
        if not process.wait(timeout_s=KILL_TIMEOUT_S):
            raise LockstepError(f"the prediction server with process id {process.pid} does not end")
    _reap(process)


def _reap(process: ProcessIdentity) -> None:
    """Takes the exit code of a process that has ended, if it was a child; another parent does so itself."""
    if ProcessIdentity.of(process.pid) == process:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
