"""Describes the prediction servers of a version as jobs: what each runs, and where its log is."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.service.security.job_folders import MODELS
from lockstep.service.store import JobKind, JobRecord, JobStore, VersionRecord
from lockstep.serving.model_files import MODEL_FOLDER
from lockstep.storage import join_url

SERVER_MODULE: Final = "lockstep.serving"
LOGS: Final = "logs"
"""The name of the folder with the logs of a version's servers, in the version's own folder."""
PRIORITY: Final = 1001
"""The priority of servers in the queue, above that of any submitted job: requests wait for them."""


def start_server(version: VersionRecord, *, jobs: JobStore, bucket: str, simulated: bool) -> None:
    """Queues another prediction server of a version.

    Args:
        version: the version, whose files have been copied.
        jobs: the store of jobs.
        bucket: the URL of the service's default bucket.
        simulated: whether its machine is simulated.
    """
    logs = join_url(version_folder(version, bucket=bucket), LOGS)
    jobs.create(
        project=version.project,
        job_id=f"{version.model}/{version.name}/{uuid.uuid4().hex[:8]}",
        training_input=server_input(
            machine_type=version.machine_type,
            accelerator=version.accelerator,
            region=version.region,
            package_uris=version.package_uris,
            arguments=_arguments(version),
            image=None if version.container is None else version.container.image,
        ),
        labels=version.labels,
        simulated=simulated,
        outputs={"logs": logs},
        kind=JobKind.SERVER,
        version_uid=version.uid,
        priority=PRIORITY,
        submitted_by="service",
    )


def server_name(server: JobRecord) -> str:
    """Returns the name of a prediction server within its version."""
    return server.job_id.rpartition("/")[2]


def version_folder(version: VersionRecord, *, bucket: str) -> str:
    """Returns the URL of a version's own folder in the bucket, with its files and the logs of its servers.

    The uid is part of it, because a version of the same name may have been there before.
    """
    return join_url(bucket, version.project, MODELS, version.model, f"{version.name}-{version.uid[:8]}")


def _arguments(version: VersionRecord) -> list[str]:
    program = () if version.python_module is None else (f"--program={version.python_module}",)
    has_code = ("--has-code",) if version.package_uris else ()
    if version.container is not None:
        return []  # the order of its gang has those of the container
    if version.prediction_class is not None:
        return [f"--model={MODEL_FOLDER}", f"--prediction-class={version.prediction_class}"]
    named = [f"--model={version.files[0].name}", f"--display-url={version.deployment_uri}", *has_code, *program]
    if version.batching is None:
        return named
    latency_ms = version.batching.max_latency_s * 1000
    return [*named, f"--max-batch-size={version.batching.max_batch_size}", f"--max-latency-ms={latency_ms:g}"]


def server_input(
    *,
    machine_type: str,
    accelerator: AcceleratorConfig | None = None,
    region: str | None = None,
    package_uris: Sequence[str] = (),
    arguments: Sequence[str] = (),
    image: str | None = None,
) -> dict[str, Any]:
    """Returns the training input of a prediction server, in the contract's JSON.

    Args:
        machine_type: the name of its machine type.
        accelerator: the accelerators of its machine, beside those that are built into the machine type.
        region: the region of its machine; None for any.
        package_uris: the bucket URLs of packages with the classes of its model.
        arguments: the arguments of the server.
        image: the image of the container that is the server; None for a server of Lockstep's own.
    """
    config: dict[str, Any] = {} if accelerator is None else {"acceleratorConfig": accelerator.to_json()}
    if image is not None:
        config["imageUri"] = image
    return {
        "scaleTier": "CUSTOM",
        "masterType": machine_type,
        **({"masterConfig": config} if config else {}),
        **({} if region is None else {"region": region}),
        **({"pythonModule": SERVER_MODULE} if image is None else {}),
        "packageUris": list(package_uris),
        # A server that is lost is replaced by another one. One that just ends is launched again where it is.
        "lockstep": {"restartPolicy": {"condition": "NEVER"}},
        "args": list(arguments),
    }
