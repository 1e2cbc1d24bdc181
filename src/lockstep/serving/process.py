"""Starts, watches and ends a prediction server's process, which outlives the process that started it.

The server has its own session, so it continues if the service or its terminal is killed. A `ServerHandle` can be
converted to JSON and back, so that a restarted service can continue with the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

from lockstep.errors import CorruptDataError, LockstepError, StorageWriteError
from lockstep.jobs.running.orders import SPOOL_VARIABLE
from lockstep.processes import ProcessIdentity, find_marked
from lockstep.processes.confinement import kill_processes_of

READY_FILE: Final = "ready.json"
TOKEN_FILE: Final = "token"  # noqa: S105 (a file's name)
LOG_FILE: Final = "server.log"
RECORD_FILE: Final = "server.json"
OWN_FOLDER: Final = "own"
"""The folder for files of a server that may run a package's code: ready file, model, packages, temporary files."""
LOADING_PREFIX: Final = "lockstep-model-"
"""The prefix of temporary folders for a model's file while a server loads it. A killed server leaves its folder."""

LOG_TAIL_BYTES: Final = 16384
KILL_TIMEOUT_S: Final = 5.0
MAX_READY_BYTES: Final = 2**20

_LOOPBACK_URL: Final = re.compile(r"http://127\.0\.0\.1:\d{1,5}")

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
        process: the identity of the server's process.
        folder: the folder with the server's ready file, token and log.
        model_url: the bucket URL of the server's model.
        user: the id of the user that the server runs as, used by nothing else; None if it runs as its starter's user.
    """

    process: ProcessIdentity
    folder: str
    model_url: str
    user: int | None = None

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    @property
    def ready_file(self) -> Path:
        """The file that the server writes when it accepts requests."""
        return Path(self.folder, *(() if self.user is None else (OWN_FOLDER,)), READY_FILE)

    @property
    def token_file(self) -> Path:
        """The file with the server's bearer token; its mode is 0600."""
        return Path(self.folder) / TOKEN_FILE

    @property
    def log_file(self) -> Path:
        """The file with the server's output."""
        return Path(self.folder) / LOG_FILE

    @property
    def record_file(self) -> Path:
        """The file with this handle as JSON, which exists while the server may be running."""
        return Path(self.folder) / RECORD_FILE

    def to_json(self) -> dict[str, object]:
        """Returns a JSON object that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Parses the result of `to_json`.

        Raises:
            CorruptDataError: the document is something else.
        """
        try:
            return cls(
                process=ProcessIdentity.from_json(document["process"]),
                folder=str(document["folder"]),
                model_url=str(document["model_url"]),
                user=None if (user := document.get("user")) is None else int(user),
            )
        except (KeyError, TypeError, ValueError, CorruptDataError):
            raise CorruptDataError("not the record of a prediction server", received=document) from None


@final
@dataclass(frozen=True, kw_only=True)
class ServerStarting:
    """The status of a server that is loading and compiling its model."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerReady:
    """The status of a server that accepts requests.

    Attributes:
        url: the URL of the server, such as ``http://127.0.0.1:40123``.
        token: the bearer token for ``POST /predict``.
        inputs: the model's inputs, each as ``{"name", "shape", "dtype"}``.
    """

    url: str
    token: str = field(repr=False)
    inputs: tuple[Mapping[str, object], ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class ServerFailed:
    """The status of a server that has ended, or whose files cannot be read.

    Attributes:
        reason: the last line of the server's output, or the error of its files.
    """

    reason: str


ServerStatus = ServerStarting | ServerReady | ServerFailed


@final
@dataclass(frozen=True, kw_only=True)
class ServerCode:
    """The code of a version, and how its server may run it.

    Attributes:
        packages: the bucket URLs of the version's packages.
        program: the module that the version's job ran; None if it is not known.
        refusal: the reason why no code may run in the server; None if it may.
        user: the id of the user that the server runs as, used by nothing else; None for its starter's user.
        bucket: the URL of the service's default bucket.
    """

    packages: tuple[str, ...] = ()
    program: str | None = None
    refusal: str | None = None
    user: int | None = None
    bucket: str = ""

    def to_arguments(self) -> list[str]:
        """Returns the arguments for the server's command line."""
        return [
            *(f"--package-url={url}" for url in self.packages),
            *(() if self.program is None else (f"--program={self.program}",)),
        ]


NO_CODE: Final = ServerCode()


def start_server(
    *, model_url: str, folder: Path, code: ServerCode = NO_CODE, python: str = sys.executable
) -> ServerHandle:
    """Starts a prediction server in its own session, and does not wait for it.

    The server gets a new token, an environment without the caller's secrets (except credentials for buckets), and the
    folder, which is also its working folder. A server that still runs in the folder is ended first, because its starter
    may have died before it stored the handle.

    Args:
        model_url: the bucket URL of a ``.keras`` file.
        folder: the server's own folder. It is created, and files of an earlier server in it are removed. Only one
            caller at a time may start a server in it.
        code: the version's code. If it has a user, this process must run as root, and other users must have search
            permission on the parents of ``folder``.
        python: the path of the Python interpreter for the server.

    Raises:
        StorageWriteError: the folder cannot be written, or the process cannot be started.
        LockstepError: an earlier server in the folder does not end.
    """
    folder = folder.absolute()
    ready_file, token_file, log_file = (folder / name for name in (READY_FILE, TOKEN_FILE, LOG_FILE))
    command = [python, "-P", "-m", *_arguments(model_url=model_url, folder=folder, code=code)]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stop_all(folder=folder)
        for path in (ready_file, token_file, log_file):
            path.unlink(missing_ok=True)
        _remove_models(folder)
        if code.user is not None:
            kill_processes_of(code.user)
        _write_private(token_file, secrets.token_urlsafe(32))
        # posix_spawn instead of subprocess, whose object would have to be kept: the process may outlive this one.
        pid = os.posix_spawn(
            python,
            command,
            # Marked, so that `stop_all` finds it even if its starter dies before it has stored the handle.
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
    handle = ServerHandle(process=process, folder=str(folder), model_url=model_url, user=code.user)
    try:
        _write_private(handle.record_file, json.dumps(handle.to_json()))
    except OSError as error:
        stop(handle)
        raise StorageWriteError(f"cannot write {handle.record_file}: {error.strerror}") from error
    return handle


def _arguments(*, model_url: str, folder: Path, code: ServerCode) -> list[str]:
    """Returns the module to run and its arguments."""
    if code.user is not None:
        return [
            "lockstep.serving.confined",
            f"--user={code.user}",
            f"--folder={folder}",
            f"--bucket={code.bucket}",
            f"--model-url={model_url}",
            *code.to_arguments(),
        ]
    return [
        "lockstep.serving",
        f"--model-url={model_url}",
        f"--ready-file={folder / READY_FILE}",
        f"--token-file={folder / TOKEN_FILE}",
        *code.to_arguments(),
        *(() if code.refusal is None else (f"--code-refused={code.refusal}",)),
    ]


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a prediction server: the variables that it needs, with no secrets except for buckets.

    Args:
        env: the environment of the process that starts the server.
    """
    kept = {name: value for name, value in env.items() if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)}
    return {**kept, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}


def poll(handle: ServerHandle) -> ServerStatus:
    """Returns the status of a server. Does not block. Reaps the process if it was a child of this one and has ended.

    Args:
        handle: the handle of the server.
    """
    if not handle.process.is_alive:
        _reap(handle.process)
        return ServerFailed(reason=_last_line(handle.log_file) or "the prediction server has ended without any output")
    try:
        ready = json.loads(_read_untrusted(handle.ready_file))
        if ready["pid"] != handle.pid:
            return ServerStarting()
        if not _LOOPBACK_URL.fullmatch(str(ready["url"])):  # requests are sent to it
            raise ValueError("its address is not on loopback")
        token = handle.token_file.read_text("utf-8").strip()
        return ServerReady(url=str(ready["url"]), token=token, inputs=tuple(ready["input"]))
    except FileNotFoundError:
        return ServerStarting()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ServerFailed(reason=f"the prediction server's files cannot be read: {error}")


def stop(handle: ServerHandle, *, grace_s: float = 10.0) -> None:
    """Ends a server with SIGTERM, and with SIGKILL after a grace period.

    Idempotent. Another process that has got the same process id is not affected.

    Args:
        handle: the handle of the server.
        grace_s: the grace period in seconds.

    Raises:
        LockstepError: the process does not end.
    """
    _end(handle.process, grace_s=grace_s)
    _end_marked(Path(handle.folder), grace_s=0.0)  # processes that a package's code has started
    if handle.user is not None:
        kill_processes_of(handle.user)
    for path in (handle.ready_file, handle.token_file, handle.record_file):
        path.unlink(missing_ok=True)
    _remove_models(Path(handle.folder))


def stop_all(*, folder: Path, grace_s: float = 10.0) -> None:
    """Ends every server whose folder is this folder or is within it, even if its handle was not stored.

    Args:
        folder: a server's own folder, or a parent folder of several servers' folders.
        grace_s: the grace period of each server, in seconds.

    Raises:
        LockstepError: a process does not end.
    """
    for record_file in folder.rglob(RECORD_FILE):
        _stop_recorded(record_file, grace_s=grace_s)
    # If the starter was killed between starting the server and writing the record, only the mark identifies the server.
    _end_marked(folder, grace_s=grace_s)


def _end_marked(folder: Path, *, grace_s: float) -> None:
    beneath = folder.resolve()
    for process in find_marked(SPOOL_VARIABLE, accept=lambda mark: Path(mark).resolve().is_relative_to(beneath)):
        _end(process, grace_s=grace_s)


def _stop_recorded(record_file: Path, *, grace_s: float) -> None:
    try:
        earlier = ServerHandle.from_json(json.loads(record_file.read_text("utf-8")))
    except FileNotFoundError:
        return
    except (ValueError, CorruptDataError):
        # The starter died while it was writing the record; the server is found by its mark.
        record_file.unlink()
        return
    stop(earlier, grace_s=grace_s)


def _remove_models(folder: Path) -> None:
    for loading in folder.glob(f"{LOADING_PREFIX}*"):
        shutil.rmtree(loading, ignore_errors=True)
    shutil.rmtree(folder / OWN_FOLDER, ignore_errors=True)


def _end(process: ProcessIdentity, *, grace_s: float) -> None:
    process.send(signal.SIGTERM)
    if not process.wait(timeout_s=grace_s):
        process.send(signal.SIGKILL)
        if not process.wait(timeout_s=KILL_TIMEOUT_S):
            raise LockstepError(f"the prediction server with process id {process.pid} does not end")
    _reap(process)


def _reap(process: ProcessIdentity) -> None:
    """Reaps a process that has ended, if it was a child of this one. Other parents reap their children themselves."""
    if ProcessIdentity.of(process.pid) == process:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _read_untrusted(path: Path) -> str:
    """Reads a small file that may belong to another user, who may have replaced it by a link or a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path.name} is no file")
        return file.read(MAX_READY_BYTES).decode("utf-8")


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
