"""What a replica's container gets: pure, from its order and from what the node is like."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, final

from lockstep.containers import ContainerEngine, ContainerSpec, EngineKind, JobLabels, Mount
from lockstep.errors import ContainerEngineError, ImageError
from lockstep.jobs.running.orders import ContainerOrder, ReplicaOrder
from lockstep.jobs.running.packages import Code
from lockstep.runner.environment import program_environment
from lockstep.spools import HEARTBEAT_SOCKET
from lockstep.storage import local_path

GOOGLE_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"
SECRETS: Final = "/run/lockstep"
"""Where a container finds the bucket's credentials."""

_PASSED_ON: Final = (
    *("TZ", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"),
)
CONTAINER_PASSED_ON: Final = frozenset({*_PASSED_ON, GOOGLE_CREDENTIALS})
"""Variables of the node that a container sees: its paths and libraries are not the node's."""

_AWS_FILES: Final = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
_ENGINES_OWN: Final = re.compile(
    r"(LD_|GO|DOCKER_|CONTAINER|_CONTAINERS|XDG_|REGISTRY_|STORAGE_|BUILDAH_|DBUS_|SSL_|NOTIFY_|LISTEN_|LOCKSTEP_|GLIBC_)"
    r"|(PATH|HOME|TMPDIR|USER|.*_proxy)$",
    re.IGNORECASE,
)
"""Variables by which a job could steer the engine's command itself."""


@final
@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What the node is like.

    Attributes:
        env: the runner's own variables.
        user: "uid:gid" of the runner.
        runner: the runner as a label's value.
        num_cpus: how many processors it has.
        memory_bytes: how much memory it has.
        ulimits: the runner's own hard limits by ulimit's names; more than these it cannot give.
        tpu_devices: the device files of its TPUs.
        has_gpu_descriptions: whether GPUs are described there for podman (the container device interface).
        exists: says whether a path is there.
        real: returns where a path leads, links followed.
    """

    env: Mapping[str, str]
    user: str
    runner: str
    num_cpus: int
    memory_bytes: int
    ulimits: Mapping[str, int] = field(default_factory=dict[str, int])
    tpu_devices: tuple[str, ...] = ()
    has_gpu_descriptions: bool = False
    exists: Callable[[str], bool] = field(default=lambda path: Path(path).exists())
    real: Callable[[str], str] = field(default=os.path.realpath)


@final
@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """A container as it is to be made.

    Attributes:
        spec: the container.
        env_lines: content of its file of variables.
        inherited_env: variables whose values have several lines, which no such file can hold: they go by the
            environment of the engine's command.
        folders: folders of the node that have to be there before.
    """

    spec: ContainerSpec
    env_lines: tuple[str, ...]
    inherited_env: Mapping[str, str]
    folders: tuple[str, ...]


def container_name(order: ReplicaOrder) -> str:
    """Returns the name of a replica's container; no other start, job or home has the same."""
    digest = hashlib.sha256(order.spool.encode()).hexdigest()[:12]
    return f"lockstep-{order.job[:40]}-{order.name}-{order.attempt}-{digest}"


def plan_container(
    order: ReplicaOrder, *, engine: ContainerEngine, code: Sequence[Code], env_file: str, facts: NodeFacts
) -> ContainerPlan:
    """Returns the container for a replica's program.

    Paths are the same inside and outside, so that what the order says of them holds in both.

    Args:
        order: the replica's order, which names a container.
        engine: the node's engine.
        code: the order's packages on the node.
        env_file: where the file of variables will be.
        facts: the node.

    Raises:
        ImageError: a variable's value, or a path, is one that cannot be handed to a container.
        ContainerEngineError: the node cannot give a container what was ordered.
    """
    container = order.container
    assert container is not None
    variables, credentials = _environment(order, code=code, facts=facts)
    outputs = _held_in(_output_mounts(order), container=container, facts=facts)
    inherited = {name: value for name, value in variables.items() if "\n" in value or "\r" in value}
    for name in inherited:
        if _ENGINES_OWN.match(name):
            raise ImageError(f"the variable {name} of a container has several lines", allowed="one line")
    memory_bytes = container.memory_bytes
    spec = ContainerSpec(
        name=container_name(order),
        image=container.image,
        entry_point=container.entry_point,
        arguments=order.command,
        labels=JobLabels(
            job=order.job, replica=order.name, attempt=order.attempt, spool=order.spool, runner=facts.runner
        ).to_mapping(),
        env_file=env_file,
        inherited=tuple(inherited),
        mounts=(
            Mount(source=_work(order), target=_work(order), writable=True),
            *_code_mounts(order, code=code),
            *_heartbeat_mounts(order, facts=facts),
            *outputs,
            *credentials,
            *_held_in(_readable_mounts(container, writable=outputs, facts=facts), container=container, facts=facts),
        ),
        workdir=str(code[0].folder) if code and container.runs_code else None,
        user="0:0" if engine.rootless else facts.user,  # a rootless engine's root is this user outside
        cpus=None if container.cpus is None else min(container.cpus, facts.num_cpus),
        memory_bytes=memory_bytes,
        shm_bytes=min(memory_bytes or facts.memory_bytes, facts.memory_bytes) // 2,
        ulimits=facts.ulimits,
        gpus=_gpus(order, engine=engine, facts=facts),
        devices=facts.tpu_devices if _has_real(order, "TPU") else (),
    )
    lines = tuple(f"{name}={value}" for name, value in variables.items() if name not in inherited)
    folders = (_home(order), *(mount.source for mount in outputs))
    return ContainerPlan(spec=spec, env_lines=lines, inherited_env=inherited, folders=folders)


def _work(order: ReplicaOrder) -> str:
    return str(Path(order.spool) / "work")


def _home(order: ReplicaOrder) -> str:
    return str(Path(order.spool) / "work" / ".home")


def _environment(
    order: ReplicaOrder, *, code: Sequence[Code], facts: NodeFacts
) -> tuple[dict[str, str], tuple[Mount, ...]]:
    """Returns the program's variables, and the credentials that they name."""
    node = {name: facts.env[name] for name in _PASSED_ON if name in facts.env}
    mounts: list[Mount] = []
    google = facts.env.get(GOOGLE_CREDENTIALS)
    if google and google.startswith("/") and facts.exists(google):
        node[GOOGLE_CREDENTIALS] = f"{SECRETS}/google-credentials.json"
        mounts.append(Mount(source=google, target=node[GOOGLE_CREDENTIALS]))
    variables = {"HOME": _home(order), "USER": "lockstep", "LOGNAME": "lockstep"}
    if "AWS_PROFILE" in node:
        for name, file in _AWS_FILES.items():
            source = str(PurePosixPath(facts.env.get("HOME", "/"), ".aws", file))
            if facts.exists(source):
                variables[name] = f"{SECRETS}/aws-{file}"
                mounts.append(Mount(source=source, target=variables[name]))
    return {**variables, **program_environment(order, code=code, node=node)}, tuple(mounts)


def _code_mounts(order: ReplicaOrder, *, code: Sequence[Code]) -> list[Mount]:
    """Returns the folders of code that are not the replica's own: a local run's, where its user has it."""
    folders = dict.fromkeys(str(package.folder) for package in code)
    return [Mount(source=path, target=path, writable=True) for path in folders if not _is_within(path, _work(order))]


def _heartbeat_mounts(order: ReplicaOrder, *, facts: NodeFacts) -> tuple[Mount, ...]:
    """Returns the socket by which the program says how far it is; a local run has none."""
    socket = str(Path(order.spool) / HEARTBEAT_SOCKET)
    return (Mount(source=socket, target=socket, writable=True),) if facts.exists(socket) else ()


def _output_mounts(order: ReplicaOrder) -> tuple[Mount, ...]:
    """Returns the job's own folders of a bucket that is a folder of the node: its outputs, and its log to read."""
    urls = (order.model_dir, order.checkpoint_dir, order.tensorboard_dir)
    paths = [path for path in (local_path(url) for url in urls if url) if path is not None]
    # Whoever replaces a folder whole renames one beside it: so what is around them is mounted, where it is one place.
    parents = dict.fromkeys(str(PurePosixPath(path).parent) for path in paths)
    places = list(parents) if len(parents) == 1 else paths
    mounts = [Mount(source=path, target=path, writable=True) for path in places]
    log = local_path(order.log_url)
    if log is not None:
        for place in places:
            if _is_within(log, place) and log != place:
                top = str(PurePosixPath(place, PurePosixPath(log).relative_to(place).parts[0]))
                mounts.append(Mount(source=top, target=top))
    return tuple(mounts)


def _readable_mounts(container: ContainerOrder, *, writable: Sequence[Mount], facts: NodeFacts) -> list[Mount]:
    paths = [path for path in dict.fromkeys(container.readable) if facts.exists(path)]
    covered = [mount.target for mount in writable]
    return [
        Mount(source=path, target=path)
        for path in paths
        if not any(_is_within(path, place) or _is_within(place, path) for place in covered)
        and not any(other != path and _is_within(path, other) for other in paths)
    ]


def _held_in(mounts: Sequence[Mount], *, container: ContainerOrder, facts: NodeFacts) -> tuple[Mount, ...]:
    """Returns mounts of what paths in the project's folder really are: other jobs of the project may make links there.

    Raises:
        ImageError: a link leads out of that folder, to what is not the project's.
    """
    folder = container.project_folder
    if folder is None:
        return tuple(mounts)
    held: list[Mount] = []
    for mount in mounts:
        if _is_within(mount.source, folder):
            real = facts.real(mount.source)
            if not _is_within(real, facts.real(folder)):
                raise ImageError(f"{mount.source} leads out of its project's folder by a link", allowed=f"{folder}/...")
            held.append(replace(mount, source=real))
        else:
            held.append(mount)
    return tuple(held)


def _is_within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _has_real(order: ReplicaOrder, kind: str) -> bool:
    return order.accelerator_type is not None and order.accelerator_type.startswith(kind) and not order.simulated


def _gpus(order: ReplicaOrder, *, engine: ContainerEngine, facts: NodeFacts) -> tuple[str, ...]:
    """Returns the GPUs that the engine of the cluster granted, by index or UUID."""
    if not _has_real(order, "NVIDIA"):
        return ()
    if engine.kind is EngineKind.PODMAN and not facts.has_gpu_descriptions:
        raise ContainerEngineError(
            "podman knows nothing of this node's GPUs",
            action="describe them with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    granted = [name for name in facts.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return tuple(granted) or tuple(str(index) for index in range(order.accelerator_count))
