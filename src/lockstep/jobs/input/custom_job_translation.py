"""Translates a custom job, Vertex AI's form of a job, into the contract's form.

A field that has no counterpart there is never dropped: the job is rejected with an error that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstep.errors import ConfigError
from lockstep.jobs.input.custom_jobs import (
    MACHINE_TYPES,
    CustomJobScheduling,
    CustomJobSpec,
    MachineSpec,
    WorkerPoolSpec,
    unsupported_fields,
)
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.input.spec import (
    MIN_WAIT_TIME_S,
    EncryptionConfig,
    Role,
    ScaleTier,
    TrainingInput,
    duration_s,
    unsupported,
    with_reader_names,
)
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.restarts import RestartCondition

FLEX_START_WAIT: Final = "86400s"
"""How long a job with strategy FLEX_START waits if it sets no maximum: one day, Vertex AI's default."""

_POOLS: Final[tuple[tuple[str, Role], ...]] = (
    ("master", "master"),
    ("worker", "worker"),
    ("parameterServer", "ps"),
    ("evaluator", "evaluator"),
)
"""The contract's key and role of each worker pool, by the pool's index."""


def translate(
    spec: CustomJobSpec, *, encryption: EncryptionConfig | None = None, root: str = "", source: str
) -> TrainingInput:
    """Returns a custom job as a training input.

    Args:
        spec: the custom job's specification.
        encryption: the customer-managed key, which a custom job has beside its spec.
        root: the prefix of the spec's keys in error messages: "" or "jobSpec.".
        source: the file's name, or "request", for error messages.

    Raises:
        ConfigError: If the job asks for something that this version cannot provide, or that the catalogue does not
            have. The error uses the field names of the custom job.
    """
    wait = _max_wait(spec.scheduling, what=f"{source}: {root}scheduling.maxWaitDuration")
    document: dict[str, Any] = {
        "scaleTier": ScaleTier.CUSTOM,
        "useChiefInTfConfig": True,  # Vertex AI's TF_CONFIG has no master
        "scheduling": {
            key: text for key, text in (("maxRunningTime", spec.scheduling.timeout), ("maxWaitTime", wait)) if text
        },
        "serviceAccount": spec.service_account,
        "network": spec.network,
        "enableWebAccess": spec.enable_web_access,
        "encryptionConfig": encryption,
    }
    names = {
        "encryptionConfig": "encryptionSpec",
        **{key: f"{root}{key}" for key in ("serviceAccount", "network", "enableWebAccess")},
    }
    env: dict[str, dict[str, str]] = {}
    for index, ((key, role), pool) in enumerate(zip(_POOLS, spec.worker_pool_specs, strict=False)):
        if pool.num_replicas:
            document.update(_pool(key, pool))
            names.update(_pool_names(key, path=f"{root}workerPoolSpecs[{index}]"))
        if pool.env:
            env[role] = pool.env
    base = spec.base_output_directory
    document["lockstep"] = {
        "env": env,
        "baseOutputDirectory": None if base is None else base.output_uri_prefix,
        "restartPolicy": {
            **({"condition": RestartCondition.NEVER} if spec.scheduling.disable_retries else {}),
            "wholeJob": spec.scheduling.restart_job_on_worker_restart,
        },
    }
    asked = TrainingInput.model_validate({key: value for key, value in document.items() if value is not None})
    names = {f"trainingInput.{key}": name for key, name in names.items()}
    lines = [f"{root}{path}: {reason}; remove it" for path, reason in unsupported_fields(spec)]
    lines += [with_reader_names(line, names=names) for line in unsupported(asked)]
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise ConfigError(f"{source}: {lines[0]}{more}")
    _check_catalogue(asked, names=names, source=source)
    return asked


def _check_catalogue(asked: TrainingInput, *, names: Mapping[str, str], source: str) -> None:
    """Rejects what the catalogue does not have.

    It checks here because later code knows only the names of the training input, not those of the custom job.
    """
    try:
        resolve(asked, catalogue=load_catalogue())
    except ConfigError as error:
        raise ConfigError(
            f"{source}: {with_reader_names(error.what, names=names)}",
            received=error.received,
            allowed=error.allowed,
            action=error.action,
        ) from None


def _max_wait(scheduling: CustomJobScheduling, *, what: str) -> str | None:
    wait = scheduling.max_wait_duration
    if wait is None:
        return FLEX_START_WAIT if scheduling.strategy == "FLEX_START" else None
    seconds = duration_s(wait)
    if 0 < seconds < MIN_WAIT_TIME_S:
        raise ConfigError(what, received=wait, allowed=f"0s, which is no limit, or {MIN_WAIT_TIME_S:.0f}s and more")
    return wait if seconds else None


def _pool(key: str, pool: WorkerPoolSpec) -> dict[str, Any]:
    """Returns the fields of a training input that correspond to a worker pool."""
    machine, container, task = pool.machine_spec, pool.container_spec, pool.python_package_spec
    assert machine is not None
    config: dict[str, Any] = {"acceleratorConfig": _accelerators(machine), "diskConfig": pool.disk_spec}
    document: dict[str, Any] = {f"{key}Type": MACHINE_TYPES.get(machine.machine_type, machine.machine_type)}
    if key != "master":
        document[f"{key}Count"] = pool.num_replicas
    if container is not None:
        config |= {
            "imageUri": container.image_uri,
            "containerCommand": container.command,
            "containerArgs": container.args,
        }
    elif task is not None:
        config["imageUri"] = task.executor_image_uri
        document |= {"pythonModule": task.python_module, "packageUris": task.package_uris, "args": task.args}
    config = {name: value for name, value in config.items() if value}
    return document | ({f"{key}Config": config} if config else {})


def _accelerators(machine: MachineSpec) -> dict[str, Any] | None:
    if machine.accelerator is None:
        return None
    return {"count": machine.accelerator_count, "type": machine.accelerator}


def _pool_names(key: str, *, path: str) -> dict[str, str]:
    """Returns the custom job's names of a pool's fields, keyed by their names in the training input."""
    return {
        f"{key}Type": f"{path}.machineSpec.machineType",
        f"{key}Config.acceleratorConfig": f"{path}.machineSpec.acceleratorType",
        f"{key}Config.acceleratorConfig.count": f"{path}.machineSpec.acceleratorCount",
        f"{key}Config.diskConfig": f"{path}.diskSpec",
    }
