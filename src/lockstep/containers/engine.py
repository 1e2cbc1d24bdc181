"""The container engine of this machine, called by its command line: podman, or docker if its daemon answers."""

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
"""Environment variable that selects the engine: podman, docker, or a path to either."""

CALL_TIMEOUT_S: Final = 60.0
"""The default timeout of a call, for calls that only inspect, create or remove."""

INIT_PLACES: Final = ("/usr/libexec/podman/catatonit", "/usr/local/libexec/podman/catatonit", "/usr/bin/catatonit")
"""The possible paths of podman's init program. Without it, a program that does not handle SIGTERM needs SIGKILL."""

_POLL_S: Final = 0.1
_PASSED_ON: Final = frozenset(
    {
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
        *("DOCKER_API_VERSION", "DOCKER_BUILDKIT", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
        *("CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE", "BUILDAH_ISOLATION", "BUILDAH_FORMAT"),
        "LOCKSTEP_SPOOL",  # the mark of a replica's processes, by which a dead runner's client is found
    }
)


@final
class EngineKind(StrEnum):
    """The kinds of container engines."""

    PODMAN = "podman"
    DOCKER = "docker"


@final
@dataclass(frozen=True, kw_only=True)
class EngineAnswer:
    """The result of a call of the engine's command line.

    Attributes:
        code: the exit code.
        output: the standard output.
        errors: the standard error.
    """

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line that is not empty, of standard error or else of standard output."""
        lines = [line for line in (self.errors.strip() or self.output.strip()).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


@final
@dataclass(frozen=True, kw_only=True)
class ContainerEngine:
    """A container engine, as it describes itself.

    Attributes:
        kind: podman or docker.
        path: the path of the engine's command.
        version: the engine's version.
        rootless: whether root in a container is this user on the machine.
        has_init: whether the engine can start an init program first in a container, which forwards signals.
        has_selinux: whether SELinux denies containers access to files without its labels.
        env: the complete environment of the engine's command.
    """

    kind: EngineKind
    path: str
    version: str = ""
    rootless: bool = False
    has_init: bool = True
    has_selinux: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def describe(self) -> str:
        """Returns a description: "podman 4.3.1"."""
        return f"{self.kind} {self.version}".strip() + (" (rootless)" if self.rootless else "")

    def call(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        cancelled: threading.Event | None = None,
        env: Mapping[str, str] | None = None,
    ) -> EngineAnswer:
        """Runs the engine's command to its end. Blocks. May be called from any thread.

        Args:
            arguments: the arguments of the command. They must contain no secrets, because all users of the machine can
                read them.
            timeout_s: the timeout in seconds.
            cancelled: ends the command when set.
            env: environment variables in addition to the engine's own.

        Raises:
            ContainerEngineError: the command could not be run, took too long, or was cancelled.
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
                with contextlib.suppress(ProcessLookupError):  # also its children, which may hold the pipes open
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return EngineAnswer(
            code=process.returncode,
            output=output.decode(errors="replace"),
            errors=errors.decode(errors="replace"),
        )


def open_engine(env: Mapping[str, str] | None = None) -> ContainerEngine:
    """Returns the engine of this machine: the one that `ENGINE_VARIABLE` names, else podman, else docker.

    An engine is used only if it answers: a docker command without its daemon does not count. Blocks for a fraction of a
    second.

    Args:
        env: the environment variables; this process's own by default.

    Raises:
        ContainerEngineError: no engine answers. The message has the reasons.
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
            return _describe_engine(path, name=Path(name).name, env=passed_on)
        except ContainerEngineError as error:
            problems.append(str(error))
    raise ContainerEngineError(
        f"no container engine answers here: {'; '.join(problems)}",
        action=f"make {named} answer, or unset {ENGINE_VARIABLE}" if named else "install podman or docker",
    )


def _describe_engine(path: str, *, name: str, env: Mapping[str, str]) -> ContainerEngine:
    """Asks an engine to describe itself."""
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
    if "host" in about:  # not by name: podman may be installed as docker
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
