"""Plans what a replica's container gets. Pure: it follows from the order and the facts about the node."""

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
from lockstep.heartbeat import HEARTBEAT_VARIABLE
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.jobs.running.packages import Code
from lockstep.runner.environment import program_environment
from lockstep.runner.memory_limit import SHARE
from lockstep.spools import HEARTBEAT_SOCKET, PROFILE_REQUEST
from lockstep.storage import local_path

GOOGLE_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"
SECRETS: Final = "/run/lockstep"
"""The folder inside a container with the bucket's credentials."""

_PASSED_ON: Final = (
    *("TZ", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"),
)
CONTAINER_PASSED_ON: Final = frozenset({*_PASSED_ON, GOOGLE_CREDENTIALS})
"""The node's variables that a container sees; those of the node's paths and libraries would not hold inside."""

_AWS_FILES: Final = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
MAX_SERVER_PROCESSES: Final = 4096
"""The maximum number of processes and threads of a server."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_.-]")
_ENGINE_VARIABLES: Final = re.compile(
    r"(LD_|GO|DOCKER_|CONTAINER|_CONTAINERS|XDG_|REGISTRY_|STORAGE_|BUILDAH_|DBUS_|SSL_|NOTIFY_|LISTEN_|LOCKSTEP_|GLIBC_)"
    r"|(PATH|HOME|TMPDIR|USER|.*_proxy)$",
    re.IGNORECASE,
)
"""Variables with which a job could control the engine's command itself."""


@final
@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """The facts about a node that decide what a container gets.

    Attributes:
        env: the environment variables of the runner.
        user: the runner's user and group, as "uid:gid".
        runner: the identity of the runner, as the value of a label.
        num_cpus: the number of processors.
        memory_bytes: the memory, in bytes.
        ulimits: the runner's own hard limits, by the names of ulimit, which a container cannot exceed.
        tpu_devices: the device files of the TPUs.
        has_gpu_descriptions: whether the node describes its GPUs for podman (container device interface, CDI).
        exists: returns whether a path exists.
        resolve: returns a path with its symbolic links resolved.
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
    resolve: Callable[[str], str] = field(default=os.path.realpath)


@final
@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """A container to create.

    Attributes:
        spec: the specification of the container.
        env_lines: the lines of its file of variables.
        inherited_env: the variables with values of several lines, which no such file can hold. They are passed through
            the environment of the engine's command.
        folders: the folders of the node that have to exist before.
    """

    spec: ContainerSpec
    env_lines: tuple[str, ...]
    inherited_env: Mapping[str, str]
    folders: tuple[str, ...]


def container_name(order: ReplicaOrder) -> str:
    """Returns the name of a replica's container, which differs between all attempts, jobs and homes."""
    digest = hashlib.sha256(order.spool.encode()).hexdigest()[:12]
    job = _NOT_IN_NAMES.sub("-", order.job[:40])  # that of a server has slashes
    return f"lockstep-{job}-{order.name}-{order.attempt}-{digest}"


def plan_container(
    order: ReplicaOrder, *, engine: ContainerEngine, code: Sequence[Code], env_file: str, facts: NodeFacts
) -> ContainerPlan:
    """Plans the container for a replica's program.

    Paths are the same inside and outside of the container, so that the order's paths hold in both.

    Args:
        order: the order of the replica, which must name a container.
        engine: the container engine of the node.
        code: the order's packages on the node.
        env_file: the path for the file of variables.
        facts: the facts about the node.

    Raises:
        ImageError: If a variable's value or a path cannot be passed to a container.
        ContainerEngineError: If the node cannot give the container what was ordered.
    """
    container = order.container
    assert container is not None
    variables, credentials = _environment(order, code=code, facts=facts)
    outputs = _resolve_in_project(_output_mounts(order), container=container, facts=facts)
    inherited = {name: value for name, value in variables.items() if "\n" in value or "\r" in value}
    for name in inherited:
        if _ENGINE_VARIABLES.match(name):
            raise ImageError(f"the variable {name} of a container has several lines", allowed="one line")
    memory_bytes = container.memory_bytes
    if order.server is not None and memory_bytes is None:
        memory_bytes = int(SHARE * facts.memory_bytes)
    routes = None if order.server is None else order.server.routes
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
            *_resolve_in_project(
                _readable_mounts(container, writable=outputs, facts=facts), container=container, facts=facts
            ),
        ),
        workdir=str(code[0].folder) if code and container.runs_code else None,
        user="0:0" if engine.rootless else facts.user,  # root in a rootless engine is this user outside
        cpus=None if container.cpus is None else min(container.cpus, facts.num_cpus),
        memory_bytes=memory_bytes,
        shm_bytes=min(memory_bytes or facts.memory_bytes, facts.memory_bytes) // 2,
        ulimits=facts.ulimits,
        gpus=_gpus(order, engine=engine, facts=facts),
        devices=facts.tpu_devices if _has_real(order, "TPU") else (),
        published_port=None if routes is None else routes.port,
        max_processes=None if order.server is None else MAX_SERVER_PROCESSES,
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
    """Returns the program's variables, and mounts of the credentials that they name.

    A server gets no credentials. It does not get the token of its requests either, nor the socket for heartbeats: the
    gateway in front of it has both.
    """
    if order.server is not None:
        bare = replace(order, secrets={}, cluster={})
        variables = program_environment(bare, code=code, node={"TZ": facts.env["TZ"]} if "TZ" in facts.env else {})
        del variables[HEARTBEAT_VARIABLE]
        return {"HOME": _home(order), "USER": "lockstep", "LOGNAME": "lockstep", **variables}, ()
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
    """Returns mounts of code outside the replica's own folder: in a local run, the user's own folder."""
    folders = dict.fromkeys(str(package.folder) for package in code)
    return [Mount(source=path, target=path, writable=True) for path in folders if not _is_within(path, _work(order))]


def _heartbeat_mounts(order: ReplicaOrder, *, facts: NodeFacts) -> tuple[Mount, ...]:
    """Returns mounts of the socket for heartbeats, and of the requests for profiles.

    A local run has none of them, and a server gets none.
    """
    socket, requests = (str(Path(order.spool) / name) for name in (HEARTBEAT_SOCKET, PROFILE_REQUEST))
    mounts = (Mount(source=socket, target=socket, writable=True), Mount(source=requests, target=requests))
    return tuple(mount for mount in mounts if order.server is None and facts.exists(mount.source))


def _output_mounts(order: ReplicaOrder) -> tuple[Mount, ...]:
    """Returns mounts of the job's own folders, if the bucket is local: its outputs, and its log for reading."""
    urls = (order.model_dir, order.checkpoint_dir, order.tensorboard_dir)
    paths = [path for path in (local_path(url) for url in urls if url) if path is not None]
    # To replace a whole folder, a program renames another one beside it. So their parent is mounted, if it is the same.
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


def _resolve_in_project(mounts: Sequence[Mount], *, container: ContainerOrder, facts: NodeFacts) -> tuple[Mount, ...]:
    """Returns mounts with resolved paths inside the project's folder, where other jobs of the project may create links.

    Raises:
        ImageError: If a link leads out of that folder, to what does not belong to the project.
    """
    folder = container.project_folder
    if folder is None:
        return tuple(mounts)
    held: list[Mount] = []
    for mount in mounts:
        if _is_within(mount.source, folder):
            real = facts.resolve(mount.source)
            if not _is_within(real, facts.resolve(folder)):
                raise ImageError(
                    f"{mount.source} leads out of its project's folder through a link", allowed=f"{folder}/..."
                )
            held.append(replace(mount, source=real))
        else:
            held.append(mount)
    return tuple(held)


def _is_within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _has_real(order: ReplicaOrder, kind: str) -> bool:
    return order.accelerator_type is not None and order.accelerator_type.startswith(kind) and not order.simulated


def _gpus(order: ReplicaOrder, *, engine: ContainerEngine, facts: NodeFacts) -> tuple[str, ...]:
    """Returns the GPUs that the cluster engine granted, by index or UUID."""
    if not _has_real(order, "NVIDIA"):
        return ()
    if engine.kind is EngineKind.PODMAN and not facts.has_gpu_descriptions:
        raise ContainerEngineError(
            "podman has no description of this node's GPUs",
            action="describe them with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    granted = [name for name in facts.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return tuple(granted) or tuple(str(index) for index in range(order.accelerator_count))
