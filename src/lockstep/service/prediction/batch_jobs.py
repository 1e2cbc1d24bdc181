"""Describes batch predictions as jobs: what their replicas run, and which model file they get.

The model is pinned when the job is created: its replicas get the version's own copy, or a copy of what ``uri`` names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, ModelError, UnavailableError, WrongStateError
from lockstep.jobs.input.predictions import DataFormat, PredictionInput
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.prediction.files import fetched
from lockstep.service.security.job_folders import MODELS
from lockstep.service.store import ModelStore, VersionState
from lockstep.serving.model_files import EXPORTED_SUFFIX, MODEL_NAME, SUFFIX, find_model
from lockstep.storage import join_url, open_bucket

BATCH_MODULE: Final = "lockstep.serving.batch"
COPIES: Final = "batch-prediction"
"""The folder among a project's models for copies of what batch predictions name by URL. No model can have this name."""

_MIB: Final = 2**20


@final
@dataclass(frozen=True, kw_only=True)
class BatchModel:
    """The model of a batch prediction.

    Attributes:
        url: the URL that its user knows it by.
        files: the pinned files; empty until they are copied.
        package_uris: the bucket URLs of packages with its classes.
        python_module: the module that its job ran; None if it is not known.
    """

    url: str
    files: tuple[FileOrder, ...] = ()
    package_uris: tuple[str, ...] = ()
    python_module: str | None = None

    @property
    def file_name(self) -> str:
        """The name of the model's file in the working folder of a program."""
        suffix = EXPORTED_SUFFIX if self.url.endswith(EXPORTED_SUFFIX) else SUFFIX
        return self.files[0].name if self.files else f"{MODEL_NAME}{suffix}"


def find_batch_model(asked: PredictionInput, *, project: str, models: ModelStore) -> BatchModel:
    """Returns the model of a batch prediction. One that is named by URL is not copied yet.

    Args:
        asked: the prediction input.
        project: the project of the job.
        models: the store of models.

    Raises:
        InvalidInputError: If the model is in another project, or the version is a custom prediction routine or a
            container.
        NotFoundError: If there is no such model or version.
        UnavailableError: If the version's files have not been copied yet, or no version of the model has traffic.
        WrongStateError: If the version is being deleted, or its files could not be copied.
    """
    if asked.uri is not None:
        own = asked.lockstep
        return BatchModel(url=asked.uri, package_uris=own.package_uris, python_module=own.python_module)
    assert asked.model_path is not None, "checked when it was parsed"
    named, model, name = asked.model_path
    if named != project:
        field = "modelName" if asked.version_name is None else "versionName"
        raise InvalidInputError(
            f"predictionInput.{field}: a model of another project", received=named, allowed=f"project {project}"
        )
    if name is None:
        name = models.get_traffic(project=project, model=model)[0].version
    version = models.get_version(project=project, model=model, name=name)
    where = f"version {version.name} of {model}"
    if version.prediction_class is not None or version.container is not None:
        kind = "custom prediction routine" if version.container is None else "container"
        raise InvalidInputError(
            f"{where} is a {kind}, which answers requests alone",
            allowed="a version with a model",
            action="send it the instances with lockstep predict",
        )
    if version.state is VersionState.DELETING:
        raise WrongStateError(f"{where} is being deleted")
    if not version.files:
        if version.state is VersionState.FAILED:
            raise WrongStateError(f"{where} has no model: {version.error_message}")
        raise UnavailableError(f"the files of {where} are being copied", action="try again in a moment")
    return BatchModel(
        url=version.deployment_uri,
        files=version.files,
        package_uris=tuple(version.package_uris),
        python_module=version.python_module,
    )


def pin_model(model: BatchModel, *, project: str, bucket: str, folder: Path) -> tuple[FileOrder, ...]:
    """Copies a model that is named by URL, and returns the copy with its digest. Blocks.

    A copy is named by its digest, so that jobs with the same model share one.

    Args:
        model: the model.
        project: the project of the job.
        bucket: the URL of the service's default bucket.
        folder: a local folder for temporary files.

    Raises:
        ModelError: If there is no model, or not only one.
        MissingInputError: If there is no such file.
        StorageError: If the bucket cannot be read or written.
        OSError: If the local folder cannot be written.
    """
    if model.files:
        return model.files
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        files = find_model(model.url)
        if files[0].name != model.file_name:
            raise ModelError(f"the model {model.url}: name the {EXPORTED_SUFFIX} file, not its folder")
        copies = [stack.enter_context(fetched(file, bucket=bucket, folder=folder)) for file in files]
        digests = [digest for _, digest in copies]
        name = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
        own = open_bucket(join_url(bucket, project, MODELS, COPIES, name))
        for file, (path, _) in zip(files, copies, strict=True):
            if not own.exists(file.name):
                own.upload(file.name, path=path)
    return tuple(
        FileOrder(url=own.url_of(file.name), name=file.name, sha256=digest)
        for file, digest in zip(files, digests, strict=True)
    )


def batch_input(asked: PredictionInput, *, model: BatchModel, run_id: str) -> dict[str, Any]:
    """Returns the training input of a batch prediction, in the contract's JSON.

    Args:
        asked: the prediction input.
        model: its model.
        run_id: distinguishes the job from others with the same output path.
    """
    own = asked.lockstep
    kind = own.accelerator_config
    config = {} if kind is None else {"acceleratorConfig": kind.to_json()}
    document: dict[str, Any] = {
        "scaleTier": "CUSTOM",
        "masterType": own.machine_type,
        "masterConfig": config,
        "packageUris": list(model.package_uris),
        "pythonModule": BATCH_MODULE,
        "args": _arguments(asked, model=model, run_id=run_id),
        "scheduling": own.scheduling.to_json(),
        "lockstep": {"restartPolicy": own.restart_policy.to_json()},
    }
    if asked.max_worker_count > 1:
        more = str(asked.max_worker_count - 1)
        document.update({"workerType": own.machine_type, "workerCount": more, "workerConfig": config})
    if asked.region is not None:
        document["region"] = asked.region
    return document


def _arguments(asked: PredictionInput, *, model: BatchModel, run_id: str) -> Sequence[str]:
    own = asked.lockstep
    data_format = own.data_format or ("JSON" if asked.data_format is DataFormat.TEXT else asked.data_format.value)
    arguments = [
        f"--model={model.file_name}",
        f"--display-url={model.url}",
        f"--run-id={run_id}",
        *(f"--input-path={path}" for path in asked.input_paths),
        f"--output-path={asked.output_url}",
        f"--input-format={data_format}",
        f"--output-format={'CSV' if asked.output_data_format is DataFormat.CSV else 'JSON'}",
        f"--batch-size={asked.batch_size}",
    ]
    if own.shard_size_mib is not None:
        arguments.append(f"--shard-size-bytes={own.shard_size_mib * _MIB}")
    if own.key_field is not None:
        arguments.append(f"--key-field={own.key_field}")
    if model.package_uris:
        arguments.append("--has-code")
    if model.python_module is not None:
        arguments.append(f"--program={model.python_module}")
    return arguments
