"""Starts, watches and ends a prediction server's process, which outlives whoever started it.

The server is a process of its own session: killing the service, or its terminal, leaves it to serve. A `ServerHandle`
round-trips through JSON, so that a service that starts again adopts it.
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
from lockstep.processes.confinement import end_all_of

READY_FILE: Final = "ready.json"
TOKEN_FILE: Final = "token"  # noqa: S105 (a file's name)
LOG_FILE: Final = "server.log"
RECORD_FILE: Final = "server.json"
OWN_FOLDER: Final = "own"
"""What belongs to the server where it may run a package's code: its ready file, model, packages and temporary files."""
LOADING_PREFIX: Final = "lockstep-model-"
"""How folders begin that a model's file lies in while the server loads it; one that dies then leaves it."""

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
        process: its process.
        folder: where its ready file, token and log lie.
        model_url: bucket URL of its model.
        user: id of the user that it runs as, and nothing else; None for its starter's own.
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
        """Written by the server when it takes requests."""
        return Path(self.folder, *(() if self.user is None else (OWN_FOLDER,)), READY_FILE)

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
                user=None if (user := document.get("user")) is None else int(user),
            )
        except (KeyError, TypeError, ValueError, CorruptDataError):
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


@final
@dataclass(frozen=True, kw_only=True)
class ServerCode:
    """The code that comes with a version, and what its server may do with it.

    Attributes:
        packages: bucket URLs of its packages.
        program: the module that its job ran; None where nobody knows.
        refusal: why no code may run in the server, in words; None where it may.
        user: id of the user that the server runs as, which nothing else does; None for its starter's own.
        bucket: URL of the service's default bucket.
    """

    packages: tuple[str, ...] = ()
    program: str | None = None
    refusal: str | None = None
    user: int | None = None
    bucket: str = ""

    def to_arguments(self) -> list[str]:
        """Returns it as the server's command line has it."""
        return [
            *(f"--package-url={url}" for url in self.packages),
            *(() if self.program is None else (f"--program={self.program}",)),
        ]


NO_CODE: Final = ServerCode()


def start_server(
    *, model_url: str, folder: Path, code: ServerCode = NO_CODE, python: str = sys.executable
) -> ServerHandle:
    """Starts a prediction server in a session of its own, and does not wait for it.

    It gets an environment without the caller's secrets (but for the credentials of buckets), a fresh token, and the
    folder for its files, which it works in. A server that still runs in the folder is ended first: its starter may have
    died before it could keep the handle.

    Args:
        model_url: bucket URL of a ``.keras`` file.
        folder: the server's own folder; it is made, and what an earlier server left in it is removed. One caller at a
            time starts servers in it.
        code: what comes with the version beside the model. Where it names a user, this process is root's, and others
            may pass through the folders above `folder`.
        python: the Python to run it with.

    Raises:
        StorageWriteError: the folder cannot be written, or no process can be started.
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
            end_all_of(code.user)
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
    handle = ServerHandle(process=process, folder=str(folder), model_url=model_url, user=code.user)
    try:
        _write_private(handle.record_file, json.dumps(handle.to_json()))
    except OSError as error:
        stop(handle)
        raise StorageWriteError(f"cannot write {handle.record_file}: {error.strerror}") from error
    return handle


def _arguments(*, model_url: str, folder: Path, code: ServerCode) -> list[str]:
    """Returns the module to run, and its arguments; -P before it: the working folder is not a place to import from."""
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
        ready = json.loads(_read_theirs(handle.ready_file))
        if ready["pid"] != handle.pid:
            return ServerStarting()
        if not _LOOPBACK_URL.fullmatch(str(ready["url"])):  # requests go there
            raise ValueError("its address is not on loopback")
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
    _end_marked(Path(handle.folder), grace_s=0.0)  # what a package's code has started
    if handle.user is not None:
        end_all_of(handle.user)
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
    _end_marked(folder, grace_s=grace_s)


def _end_marked(folder: Path, *, grace_s: float) -> None:
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
    shutil.rmtree(folder / OWN_FOLDER, ignore_errors=True)


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


def _read_theirs(path: Path) -> str:
    """Reads a small file that may be another user's, who may have put a link or a pipe in its place."""
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
