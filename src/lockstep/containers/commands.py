"""Builds the command lines of podman and docker. They contain no secrets, because all users can read them in ``ps``."""

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
    """A file or folder of the machine that is mounted into a container.

    Attributes:
        source: the path on the machine.
        target: the path in the container.
        writable: whether the program may write to it.
    """

    source: str
    target: str
    writable: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """The options of a container to be created.

    Attributes:
        name: the name of the container.
        image: the image, which must be on this machine.
        entry_point: the entry point, which replaces the image's entry point and its default arguments; empty for the
            image's own.
        arguments: the arguments of the entry point. If both are empty, the image's own are used.
        labels: the labels by name.
        env_file: the path of a file with the container's environment variables, one per line.
        inherited: the names of variables that are passed on from the environment of the engine's command.
        mounts: the files and folders of the machine that are mounted.
        workdir: the working folder; None for the image's own.
        user: the "uid:gid" within the container.
        cpus: the limit of processor time, in processors; None for no limit.
        memory_bytes: the limit of memory including swap, in bytes; None for no limit.
        shm_bytes: the size of ``/dev/shm`` in bytes.
        ulimits: the limits of the container's processes by ulimit's names, used as soft and hard limits.
        gpus: the container's GPUs, by index or UUID.
        devices: the paths of the container's device files.
        published_port: the port that can be reached from the machine, by an address of the loopback interface that the
            engine chooses; the container then has a network of its own. None for the machine's network.
        max_processes: the maximum number of its processes and threads; None for no limit.
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
    published_port: int | None = None
    max_processes: int | None = None


def create(engine: ContainerEngine, spec: ContainerSpec) -> list[str]:
    """Returns the arguments that create a container without starting it.

    Unless it publishes a port, the container uses the machine's network, so that the addresses of its peers are valid.
    It has no capabilities and cannot gain any, and it has access only to mounted files of the machine.

    Raises:
        ImageError: a path cannot be mounted.
    """
    arguments = ["create", "--name", spec.name, "--pull", "never", *_network(spec), "--log-driver", "none"]
    arguments += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", spec.user]
    if engine.has_selinux:  # local buckets lack the labels of containers
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
    """Returns the arguments that start a container and forward its output until it ends."""
    return ["start", "--attach", "--sig-proxy=false", name]


def execute(name: str, command: Sequence[str], *, terminal: str | None) -> list[str]:
    """Returns the arguments that run a command in a running container, with its environment, folder and user.

    Args:
        name: the name of the container.
        command: the command; if empty, ``bash``, or ``sh`` if the image has no ``bash``.
        terminal: the type of the command's terminal, such as ``xterm``; None for no terminal.
    """
    tty = [] if terminal is None else ["--tty", "--env", f"TERM={terminal}"]
    shell = ("/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")
    return ["exec", "--interactive", *tty, name, *(command or shell)]


def find_port(name: str, port: int) -> list[str]:
    """Returns the arguments that print the address of the machine that leads to a container's published port."""
    return ["port", name, str(port)]


def kill(names: Sequence[str], *, signal: str) -> list[str]:
    """Returns the arguments that send a signal, such as "TERM", to containers."""
    return ["kill", "--signal", signal, *names]


def remove(names: Sequence[str]) -> list[str]:
    """Returns the arguments that remove containers."""
    return ["rm", "--force", *names]


def find(label: str) -> list[str]:
    """Returns the arguments that list the ids of all containers with a label, given as ``name`` or ``name=value``."""
    return ["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"]


def pull(engine: ContainerEngine, image: str) -> list[str]:
    """Returns the arguments that pull an image from its registry."""
    return ["pull", "--quiet", *_insecure_registry_options(engine, image), image]


def push(engine: ContainerEngine, image: str) -> list[str]:
    """Returns the arguments that push an image to its registry."""
    return ["push", *_insecure_registry_options(engine, image), image]


def build(*, tag: str, containerfile: str, folder: str) -> list[str]:
    """Returns the arguments that build an image.

    Args:
        tag: the name of the image.
        containerfile: the path of the Containerfile.
        folder: the build context, the folder from which ``COPY`` copies.
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


def _network(spec: ContainerSpec) -> list[str]:
    if spec.published_port is None:
        return ["--network", "host"]
    return ["--publish", f"127.0.0.1::{spec.published_port}"]


def _limits(spec: ContainerSpec) -> list[str]:
    arguments = ["--shm-size", str(spec.shm_bytes)]
    if spec.cpus is not None:
        arguments += ["--cpus", f"{spec.cpus:g}"]
    if spec.memory_bytes is not None:
        arguments += ["--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes)]
    if spec.max_processes is not None:
        arguments += ["--pids-limit", str(spec.max_processes)]
    for name, value in spec.ulimits.items():
        arguments += ["--ulimit", f"{name}={value}:{value}"]
    return arguments


def _accelerators(engine: ContainerEngine, spec: ContainerSpec) -> list[str]:
    arguments: list[str] = []
    if spec.gpus and engine.kind is EngineKind.DOCKER:
        arguments += ["--gpus", f'"device={",".join(spec.gpus)}"']  # docker needs the quotes: it splits at commas
    elif spec.gpus:
        for gpu in spec.gpus:  # names of the container device interface, which nvidia-ctk sets up
            arguments += ["--device", f"nvidia.com/gpu={gpu}"]
    for device in spec.devices:
        arguments += ["--device", device]
    return arguments


def _insecure_registry_options(engine: ContainerEngine, image: str) -> list[str]:
    """Returns the option for a registry on this machine, which needs no certificate: only podman needs an option."""
    registry = registry_of(image)
    if engine.kind is EngineKind.PODMAN and registry is not None and is_on_loopback(registry):
        return ["--tls-verify=false"]
    return []
