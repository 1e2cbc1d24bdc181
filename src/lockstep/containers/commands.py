"""Command lines of podman and docker: pure. Nothing secret stands in them, since everybody can read them in ``ps``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from lockstep.containers.engine import ContainerEngine, EngineKind
from lockstep.containers.references import is_on_loopback, registry_of
from lockstep.errors import ImageError


@final
@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file or folder of the machine within a container.

    Attributes:
        source: its path on the machine.
        target: its path in the container.
        writable: whether the program may write there.
    """

    source: str
    target: str
    writable: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container to be made.

    Attributes:
        name: its name.
        image: its image, which is there.
        entry_point: replaces the image's, and its default arguments with it; the image's own where it is empty.
        arguments: of the entry point; the image's own where neither is given.
        labels: by name.
        env_file: file with its variables, a line each.
        inherited: names of variables that the engine's command has in its own environment.
        mounts: what it sees of the machine.
        workdir: its working folder; the image's own where it is None.
        user: "uid:gid" within it.
        cpus: how many processors' time it may have; no limit where it is None.
        memory_bytes: how much memory it may have, swap included; no limit where it is None.
        shm_bytes: size of its ``/dev/shm``.
        ulimits: limits of its processes by ulimit's names, soft and hard alike.
        gpus: the GPUs that it gets, by index or UUID.
        devices: device files that it gets.
    """

    name: str
    image: str
    entry_point: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    env_file: str
    inherited: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None
    user: str
    cpus: float | None = None
    memory_bytes: int | None = None
    shm_bytes: int
    ulimits: Mapping[str, int] = field(default_factory=dict[str, int])
    gpus: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def create(engine: ContainerEngine, spec: ContainerSpec) -> list[str]:
    """Returns the arguments that make a container, not yet started.

    It has the machine's network, so that addresses of its peers hold; no capability, and no way to get one; no more
    of the machine's files than is mounted.

    Raises:
        ImageError: a path cannot be mounted.
    """
    arguments = ["create", "--name", spec.name, "--pull", "never", "--network", "host", "--log-driver", "none"]
    arguments += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", spec.user]
    if engine.has_selinux:  # buckets of the machine have no labels that a container may touch
        arguments += ["--security-opt", "label=disable"]
    if engine.has_init:
        arguments.append("--init")
    if engine.kind is EngineKind.PODMAN:
        arguments.append("--http-proxy=false")
    for name, value in spec.labels.items():
        arguments += ["--label", f"{name}={value}"]
    arguments += ["--env-file", spec.env_file]
    for name in spec.inherited:
        arguments += ["--env", name]
    for mount in spec.mounts:
        arguments += ["--mount", _mount(mount)]
    if spec.workdir is not None:
        arguments += ["--workdir", spec.workdir]
    arguments += _limits(spec) + _accelerators(engine, spec)
    if spec.entry_point:
        arguments += ["--entrypoint", spec.entry_point[0]]
    return [*arguments, spec.image, *spec.entry_point[1:], *spec.arguments]


def start(name: str) -> list[str]:
    """Returns the arguments that start a container and pass on what it prints until it ends."""
    return ["start", "--attach", "--sig-proxy=false", name]


def execute(name: str, command: Sequence[str], *, terminal: str | None) -> list[str]:
    """Returns the arguments that run a command in a running container: its environment, folder and user.

    Args:
        name: the container.
        command: the command; the best shell that the image has where it is empty.
        terminal: the kind of the terminal that the command gets, such as ``xterm``; None for none.
    """
    tty = [] if terminal is None else ["--tty", "--env", f"TERM={terminal}"]
    shell = ("/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")
    return ["exec", "--interactive", *tty, name, *(command or shell)]


def kill(names: Sequence[str], *, signal: str) -> list[str]:
    """Returns the arguments that send a signal, such as "TERM", to containers."""
    return ["kill", "--signal", signal, *names]


def remove(names: Sequence[str]) -> list[str]:
    """Returns the arguments that remove containers."""
    return ["rm", "--force", *names]


def find(label: str) -> list[str]:
    """Returns the arguments that list the ids of all containers with a label, or with a label of one value."""
    return ["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"]


def pull(engine: ContainerEngine, image: str) -> list[str]:
    """Returns the arguments that fetch an image from its registry."""
    return ["pull", "--quiet", *_plain_registry(engine, image), image]


def push(engine: ContainerEngine, image: str) -> list[str]:
    """Returns the arguments that put an image into its registry."""
    return ["push", *_plain_registry(engine, image), image]


def build(*, tag: str, containerfile: str, folder: str) -> list[str]:
    """Returns the arguments that build an image.

    Args:
        tag: its name.
        containerfile: path of what it is built by.
        folder: what its ``COPY`` sees.
    """
    return ["build", "--tag", tag, "--file", containerfile, folder]


def _mount(mount: Mount) -> str:
    for path in (mount.source, mount.target):
        if any(sign in path for sign in ',"\n') or not path.startswith("/"):
            raise ImageError(
                "a path cannot be mounted into a container",
                received=path,
                allowed="absolute paths without commas, quotes and line breaks",
            )
    parts = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return ",".join(parts if mount.writable else [*parts, "readonly"])


def _limits(spec: ContainerSpec) -> list[str]:
    arguments = ["--shm-size", str(spec.shm_bytes)]
    if spec.cpus is not None:
        arguments += ["--cpus", f"{spec.cpus:g}"]
    if spec.memory_bytes is not None:
        arguments += ["--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes)]
    for name, value in spec.ulimits.items():
        arguments += ["--ulimit", f"{name}={value}:{value}"]
    return arguments


def _accelerators(engine: ContainerEngine, spec: ContainerSpec) -> list[str]:
    arguments: list[str] = []
    if spec.gpus and engine.kind is EngineKind.DOCKER:
        arguments += ["--gpus", f'"device={",".join(spec.gpus)}"']  # the quotes are docker's: it splits at commas
    elif spec.gpus:
        for gpu in spec.gpus:  # by the container device interface, which nvidia-ctk describes the GPUs in
            arguments += ["--device", f"nvidia.com/gpu={gpu}"]
    for device in spec.devices:
        arguments += ["--device", device]
    return arguments


def _plain_registry(engine: ContainerEngine, image: str) -> list[str]:
    """A registry of this machine's own needs no certificate: docker has it so, podman wants to be told."""
    registry = registry_of(image)
    if engine.kind is EngineKind.PODMAN and registry is not None and is_on_loopback(registry):
        return ["--tls-verify=false"]
    return []
