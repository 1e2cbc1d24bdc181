"""The container engine of this machine, called by its command line: podman, or docker where its daemon answers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast, final

from lockstep.errors import ContainerEngineError

ENGINE_VARIABLE: Final = "LOCKSTEP_CONTAINER_ENGINE"
"""Names the engine where several are there: podman, docker, or a path to either."""

CALL_TIMEOUT_S: Final = 60.0
"""How long a call that only looks, makes or removes may take."""

INIT_PLACES: Final = ("/usr/libexec/podman/catatonit", "/usr/local/libexec/podman/catatonit", "/usr/bin/catatonit")
"""Where podman's init program lies; without it a program that does not listen for SIGTERM ends by SIGKILL alone."""

_POLL_S: Final = 0.1
_PASSED_ON: Final = frozenset(
    {
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
        *("DOCKER_API_VERSION", "DOCKER_BUILDKIT", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
        *("CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE", "BUILDAH_ISOLATION", "BUILDAH_FORMAT"),
        "LOCKSTEP_SPOOL",  # the mark of a replica's processes: a client of a dead runner is found by it, too
    }
)


@final
class EngineKind(StrEnum):
    """What kind of engine it is."""

    PODMAN = "podman"
    DOCKER = "docker"


@final
@dataclass(frozen=True, kw_only=True)
class EngineAnswer:
    """What a call of the engine's command line gave.

    Attributes:
        code: its exit code.
        output: its standard output.
        errors: its standard error.
    """

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line that says something, of the errors if there are any."""
        lines = [line for line in (self.errors.strip() or self.output.strip()).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


@final
@dataclass(frozen=True, kw_only=True)
class ContainerEngine:
    """One engine, as it described itself.

    Attributes:
        kind: podman or docker.
        path: its command.
        version: its version.
        rootless: whether its root is this user outside.
        has_init: whether it can put an init program first into a container, which passes signals on.
        has_selinux: whether SELinux keeps containers from files without its labels.
        env: the whole environment of its command.
    """

    kind: EngineKind
    path: str
    version: str = ""
    rootless: bool = False
    has_init: bool = True
    has_selinux: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def describe(self) -> str:
        """Says it in words: "podman 4.3.1"."""
        return f"{self.kind} {self.version}".strip() + (" (rootless)" if self.rootless else "")

    def call(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        cancelled: threading.Event | None = None,
        env: Mapping[str, str] | None = None,
    ) -> EngineAnswer:
        """Runs the engine's command to its end. Blocks; may be called from any thread.

        Args:
            arguments: what follows the command's name. Everybody on the machine can read them: no secrets.
            timeout_s: how long it may take.
            cancelled: ends it when set.
            env: variables beside its own.

        Raises:
            ContainerEngineError: it could not be run, took too long, or was cancelled.
        """
        what = f"{self.kind} {arguments[0]}"
        try:
            process = subprocess.Popen(
                [self.path, *arguments],
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ContainerEngineError(f"{what} could not be run: {error}") from error
        deadline = time.monotonic() + timeout_s
        with process:
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        output, errors = process.communicate(timeout=_POLL_S)
                        break
                    is_cancelled = cancelled is not None and cancelled.is_set()
                    if is_cancelled or time.monotonic() > deadline:
                        why = "was cancelled" if is_cancelled else f"did not end within {timeout_s:.0f} s"
                        raise ContainerEngineError(f"{what} {why}")
            except BaseException:
                with contextlib.suppress(ProcessLookupError):  # with what it started, which may hold its output open
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return EngineAnswer(
            code=process.returncode,
            output=output.decode(errors="replace"),
            errors=errors.decode(errors="replace"),
        )


def open_engine(env: Mapping[str, str] | None = None) -> ContainerEngine:
    """Finds the engine of this machine: the one that `ENGINE_VARIABLE` names, else podman, else docker.

    One is taken only if it answers: a docker command without its daemon is none. Blocks for a fraction of a second.

    Args:
        env: environment variables; this process's by default.

    Raises:
        ContainerEngineError: none answers; the message says why not.
    """
    variables = os.environ if env is None else env
    passed_on = {name: value for name, value in variables.items() if name in _PASSED_ON}
    named = variables.get(ENGINE_VARIABLE)
    problems: list[str] = []
    for name in [named] if named else list(EngineKind):
        path = shutil.which(name, path=variables.get("PATH"))
        if path is None:
            problems.append(f"{name} is not installed")
            continue
        try:
            return _ask(path, name=Path(name).name, env=passed_on)
        except ContainerEngineError as error:
            problems.append(str(error))
    raise ContainerEngineError(
        f"no container engine answers here: {'; '.join(problems)}",
        action=f"make {named} answer, or unset {ENGINE_VARIABLE}" if named else "install podman or docker",
    )


def _ask(path: str, *, name: str, env: Mapping[str, str]) -> ContainerEngine:
    """Has an engine describe itself."""
    asked = ContainerEngine(kind=EngineKind.DOCKER, path=path, env=env)
    try:
        answer = asked.call(["info", "--format", "{{json .}}"])
    except ContainerEngineError as error:
        raise ContainerEngineError(f"{name}: {error}") from None
    try:
        document = json.loads(answer.output)
    except ValueError:
        document = None
    if answer.code or not isinstance(document, dict):
        raise ContainerEngineError(f"{name} does not answer: {answer.last_line}")
    about = cast("dict[str, Any]", document)
    if "host" in about:  # by its answer and not by its name: podman also comes under docker's
        security = about["host"].get("security", {})
        return ContainerEngine(
            kind=EngineKind.PODMAN,
            path=path,
            version=about.get("version", {}).get("Version", ""),
            rootless=bool(security.get("rootless")),
            has_init=any(Path(place).exists() for place in INIT_PLACES),
            has_selinux=bool(security.get("selinuxEnabled")),
            env=env,
        )
    options = " ".join(about.get("SecurityOptions") or ())
    return ContainerEngine(
        kind=EngineKind.DOCKER,
        path=path,
        version=about.get("ServerVersion", ""),
        rootless="name=rootless" in options,
        has_init=bool(about.get("InitBinary")),
        has_selinux="name=selinux" in options,
        env=env,
    )
