"""Starts, watches and ends a prediction server's process, which outlives whoever started it.

The server is a process of its own session: killing the service, or its terminal, leaves it to serve. A `ServerHandle`
round-trips through JSON, so that a service that starts again adopts it.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self, final

import psutil

from lockstep.errors import CorruptDataError, LockstepError, StorageWriteError

READY_FILE: Final = "ready.json"
TOKEN_FILE: Final = "token"  # noqa: S105 (a file's name)
LOG_FILE: Final = "server.log"
RECORD_FILE: Final = "server.json"

SERVER_MODULE: Final = "lockstep.serving"
READY_FILE_FLAG: Final = "--ready-file="
SHELL: Final = "/bin/sh"
IN_FOLDER: Final = 'cd "$1" && shift && exec "$@"'
"""Goes to a folder and becomes the command that follows: `os.posix_spawn` cannot start a process in a folder."""

LOG_TAIL_BYTES: Final = 16384
CREATE_TIME_TOLERANCE_S: Final = 1.0

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
        pid: its process id.
        create_time_s: when the process began, seconds since 1970 UTC: a process id comes back, the pair does not.
        folder: where its ready file, token and log lie.
        model_url: bucket URL of its model.
    """

    pid: int
    create_time_s: float
    folder: str
    model_url: str

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
                pid=int(document["pid"]),
                create_time_s=float(document["create_time_s"]),
                folder=str(document["folder"]),
                model_url=str(document["model_url"]),
            )
        except (KeyError, TypeError, ValueError):
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
    handle = ServerHandle(pid=0, create_time_s=0.0, folder=str(folder), model_url=model_url)
    command = [
        *(SHELL, "-c", IN_FOLDER, "sh", str(folder)),
        python,
        "-P",  # the working folder is not a place to import from
        "-m",
        SERVER_MODULE,
        f"--model-url={model_url}",
        f"{READY_FILE_FLAG}{handle.ready_file}",
        f"--token-file={handle.token_file}",
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stop_all(folder=folder)
        for path in (handle.ready_file, handle.token_file, handle.log_file):
            path.unlink(missing_ok=True)
        _write_private(handle.token_file, secrets.token_urlsafe(32))
        # posix_spawn rather than subprocess: nobody keeps an object for a process that outlives this one.
        pid = os.posix_spawn(
            SHELL,
            command,
            server_environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(handle.log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise StorageWriteError(f"cannot start a prediction server in {folder}: {error}") from error
    # It cannot have been reaped, even if it has ended: this process is its parent.
    handle = replace(handle, pid=pid, create_time_s=psutil.Process(pid).create_time())
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
    if _running(handle) is None:
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
    process = _running(handle)
    if process is not None:
        _end(process, grace_s=grace_s)
    for path in (handle.ready_file, handle.token_file, handle.record_file):
        path.unlink(missing_ok=True)


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
    # A starter that was killed after the start and before the record has left a server that only its command tells of.
    for process in _servers_in(folder):
        _end(process, grace_s=grace_s)


def _servers_in(folder: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:  # it has ended, or is somebody else's
            continue
        files = [Path(part.removeprefix(READY_FILE_FLAG)) for part in command if part.startswith(READY_FILE_FLAG)]
        if SERVER_MODULE in command and any(file.resolve().is_relative_to(folder.resolve()) for file in files):
            found.append(process)
    return found


def _stop_recorded(record_file: Path) -> None:
    try:
        earlier = ServerHandle.from_json(json.loads(record_file.read_text("utf-8")))
    except FileNotFoundError:
        return
    except (ValueError, CorruptDataError):
        # Cut short while it was written, a moment after the start: `_servers_in` finds its server.
        record_file.unlink()
        return
    stop(earlier)


def _end(process: psutil.Process, *, grace_s: float) -> None:
    try:
        process.terminate()
        process.wait(grace_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        _kill(process)


def _kill(process: psutil.Process, *, wait_s: float = 5.0) -> None:
    try:
        process.kill()
        process.wait(wait_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        raise LockstepError(f"the prediction server with process id {process.pid} does not end") from None


def _running(handle: ServerHandle) -> psutil.Process | None:
    """The server's process; None where it has ended."""
    try:
        process = psutil.Process(handle.pid)
        # A step of the system's clock moves the times that are computed from it, hence a tolerance.
        if abs(process.create_time() - handle.create_time_s) > CREATE_TIME_TOLERANCE_S:
            return None
        if process.status() == psutil.STATUS_ZOMBIE:
            # Reaps it where it is a child; whoever else is its parent does so itself.
            process.wait(0)
            return None
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        return None
    return process


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
