"""Orders for replicas in containers, and checks of jobs with containers before they are recorded."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from lockstep.containers import check_reference, open_engine
from lockstep.errors import ContainerEngineError, InvalidInputError
from lockstep.home import Home
from lockstep.jobs.input.gangs import Gang, Replica
from lockstep.jobs.input.named_paths import named_paths
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.service.settings import Settings
from lockstep.storage import local_path

_SYSTEM: Final = tuple(
    PurePosixPath(path)
    for path in ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
)
_SHARED: Final = frozenset(PurePosixPath(path) for path in ("/", "/home", "/root", "/opt", "/srv", "/tmp", "/var"))  # noqa: S108 - these are refused


def container_order(
    replica: Replica, *, project: str, settings: Settings, catalogue: Catalogue, reserves: bool
) -> ContainerOrder | None:
    """Returns the order for the container that a replica's program runs in; None if the replica specifies no image.

    Args:
        replica: the replica.
        project: the project of the job. In a local bucket, the program may read those files of the project that its
            arguments and variables name.
        settings: the service's settings.
        catalogue: the catalogue of machines.
        reserves: whether machine types reserve resources, so that the machine type also limits the container.
    """
    if replica.image_uri is None:
        return None
    machine = catalogue.machine_type(replica.machine_type)
    module = replica.python_module
    bucket = local_path(settings.bucket)
    words = (*replica.args, *replica.container_args, *replica.env.values())
    return ContainerOrder(
        image=replica.image_uri,
        entry_point=replica.container_command if module is None else ("python3", "-m", module),
        runs_code=module is not None,
        readable=readable_paths(
            words, bucket=settings.bucket, project=project, is_project=lambda folder: Path(folder, "jobs").exists()
        ),
        project_folder=None if bucket is None else posixpath.join(bucket, project),
        cpus=machine.vcpus if reserves else None,
        memory_bytes=int(machine.memory_gib * (1 << 30)) if reserves else None,
        images_folder=str(settings.home.cache / "images"),
    )


def readable_paths(
    words: Iterable[str], *, bucket: str, project: str, is_project: Callable[[str], bool]
) -> tuple[str, ...]:
    """Returns the paths in a local bucket that arguments and variables name, except those of other projects.

    Args:
        words: arguments such as ``/bucket/data/*.tfrec`` or ``--data=/bucket/data``, and values of variables.
        bucket: the URL of the service's default bucket.
        project: the project of the job.
        is_project: returns whether a folder directly in the bucket is a project's folder, with jobs in it.
    """
    folder = local_path(bucket)
    if folder is None:
        return ()
    found: list[str] = []
    for path in named_paths(words):
        if not PurePosixPath(path).is_relative_to(folder):
            continue
        parts = PurePosixPath(path).relative_to(folder).parts
        # Folders of jobs are PROJECT/jobs/...; the folder of a project contains them.
        is_jobs = parts[1] == "jobs" if len(parts) > 1 else is_project(path)
        if parts and (parts[0] == project or not is_jobs):
            found.append(path)
    return tuple(found)


def check_containers(gang: Gang, *, outputs: Mapping[str, str], settings: Settings) -> None:
    """Rejects a job whose containers could not run.

    Args:
        gang: the job's replicas.
        outputs: the URLs of the job's outputs, by kind.
        settings: the service's settings.

    Raises:
        ImageError: If an image's name is not valid.
        InvalidInputError: If the outputs are in a folder that no container may write to, or if this machine needs a
            container engine and has none.
    """
    images = dict.fromkeys(replica.image_uri for replica in gang if replica.image_uri is not None)
    for image in images:
        check_reference(image, what="imageUri")
    if not images:
        return
    path = local_path(posixpath.dirname(outputs["model"]))
    if path is not None:
        _check_output(PurePosixPath(path), home=settings.home, bucket=local_path(settings.bucket))
    if settings.engine.is_local:  # the nodes are this machine; other nodes have container engines of their own
        try:
            open_engine()
        except ContainerEngineError as error:
            raise InvalidInputError(f"image {next(iter(images))} cannot be run: {error}") from None


def _check_output(path: PurePosixPath, *, home: Home, bucket: str | None) -> None:
    is_bucket = bucket is not None and path != PurePosixPath(bucket) and path.is_relative_to(bucket)
    state = PurePosixPath(home.path)
    if not is_bucket and (
        path in _SHARED
        or any(path.is_relative_to(place) for place in _SYSTEM)
        or path.is_relative_to(state)
        or state.is_relative_to(path)
        or (bucket is not None and PurePosixPath(bucket).is_relative_to(path))
    ):
        raise InvalidInputError(
            "jobDir: a container may not write there",
            received=str(path),
            allowed="a bucket's URL, or a folder that holds neither Lockstep's home nor parts of the system",
        )
