"""``lockstep.submit``: submits a script, a module or a function as a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, overload

from typing_extensions import Unpack

from lockstep.client import Client
from lockstep.client.addresses import DEFAULT_PROJECT, PROJECT_VARIABLE
from lockstep.client.job import Job
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.jobs.input.documents import JobConfig, JobRequest, parse_config, parse_job
from lockstep.jobs.parsing.yaml_documents import read_yaml
from lockstep.submission.job_names import make_job_name
from lockstep.submission.programs import Code, Program, read_program
from lockstep.submission.python_environments import requirements_path, source_of
from lockstep.submission.staging import bucket_for_code, stage_code
from lockstep.submission.training_inputs import accelerator_config, check_supported, merge_parameters
from lockstep.submission.urls import absolute_url

REQUIREMENTS_FILE: Final = "lockstep-requirements.txt"
"""The name of the packed file with the requirements that a submitter lists."""
_ARGUMENTS: Final = {
    "module_name": "program",
    "user_args": "args",
    "master_machine_type": "machine_type",
    "master_accelerator": "accelerator",
    "master_image_uri": "image_uri",
}
"""The arguments of `submit` that have another name than their parameter."""
_MACHINES: Final = ("machine_type", "accelerator", "count")
"""How the names of parameters end that the scale tier CUSTOM allows."""

Accelerator: TypeAlias = str | tuple[str, int]
"""The type of accelerators of each machine, such as ``"NVIDIA_TESLA_V100"``, alone or with their number."""
Config: TypeAlias = Mapping[str, Any] | str | os.PathLike[str]
"""The content of a ``config.yaml``, or its path."""


class SubmitOptions(TypedDict, total=False):  # noqa: D101 - the arguments of `submit`, which explains them
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    name: str | None
    package_path: str | os.PathLike[str] | None
    packages: Sequence[str | os.PathLike[str]]
    requirements: str | os.PathLike[str] | Sequence[str] | None
    scale_tier: str | None
    machine_type: str | None
    accelerator: Accelerator | None
    image_uri: str | None
    worker_count: int | None
    worker_machine_type: str | None
    worker_accelerator: Accelerator | None
    parameter_server_count: int | None
    parameter_server_machine_type: str | None
    region: str | None
    config: Config | None
    env: Mapping[str, str] | None
    secrets: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    strategy: str | None
    job_dir: str | os.PathLike[str] | None
    staging_bucket: str | None
    project: str | None
    client: Client | None


@overload
def submit(program: Program, *, dry_run: Literal[False] = ..., **options: Unpack[SubmitOptions]) -> Job: ...
@overload
def submit(program: Program, *, dry_run: Literal[True], **options: Unpack[SubmitOptions]) -> dict[str, Any]: ...
def submit(
    program: Program,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    package_path: str | os.PathLike[str] | None = None,
    packages: Sequence[str | os.PathLike[str]] = (),
    requirements: str | os.PathLike[str] | Sequence[str] | None = None,
    scale_tier: str | None = None,
    machine_type: str | None = None,
    accelerator: Accelerator | None = None,
    image_uri: str | None = None,
    worker_count: int | None = None,
    worker_machine_type: str | None = None,
    worker_accelerator: Accelerator | None = None,
    parameter_server_count: int | None = None,
    parameter_server_machine_type: str | None = None,
    region: str | None = None,
    config: Config | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    strategy: str | None = None,
    job_dir: str | os.PathLike[str] | None = None,
    staging_bucket: str | None = None,
    project: str | None = None,
    client: Client | None = None,
    dry_run: bool = False,
) -> Job | dict[str, Any]:
    """Submits a job, and returns it without waiting for it.

    For example::

        job = lockstep.submit("train.py", args=["--epochs", 3], machine_type="n1-standard-8")
        job = lockstep.submit(train, kwargs={"epochs": 3}, strategy="mirrored")

    A function of a notebook or script is sent as its source, with the functions, classes, constants and imports that it
    uses. A function of a module is imported in the job. See docs/python.md.

    Args:
        program: the path of a script, which ends with ``.py``; the name of a module; or a function.
        args: the positional arguments of a function, or the arguments of a script or module.
        kwargs: the keyword arguments of a function. A function's arguments are values of JSON.
        name: the job's name; by default, a new name that begins with that of the program.
        package_path: the folder with the program's code; by default, that of the script, module or function.
        packages: further packages, ``.tar.gz`` or ``.whl``: files or bucket URLs.
        requirements: the Python packages that the program needs: a list such as ``["scikit-learn>=1.5"]``, or a file.
        scale_tier: BASIC, STANDARD_1, BASIC_GPU, CUSTOM, ...; by default, CUSTOM if machines are given.
        machine_type: the machine type of the master, such as ``n1-standard-8``.
        accelerator: the accelerators of the master: ``"NVIDIA_TESLA_V100"`` or ``("NVIDIA_TESLA_V100", 2)``.
        image_uri: the container image of all replicas.
        worker_count: the number of workers.
        worker_machine_type: the machine type of each worker.
        worker_accelerator: the accelerators of each worker.
        parameter_server_count: the number of parameter servers.
        parameter_server_machine_type: the machine type of each parameter server.
        region: the region whose prices apply.
        config: everything else, as the content or the path of a ``config.yaml``. The other arguments override it.
        env: environment variables of the program.
        secrets: names of the project's secrets, by the environment variables that hold them.
        labels: the job's labels.
        strategy: the strategy whose scope a function is called in; for a script, the value of its flag
            ``--strategy``. One of `lockstep.strategies.STRATEGY_NAMES`.
        job_dir: a folder or bucket URL for the job's outputs.
        staging_bucket: the bucket for the packed code; by default, the service's own.
        project: the project; by default, the client's, or else ``LOCKSTEP_PROJECT``, or else ``local``.
        client: the client of the service; by default, one for the service that the environment names.
        dry_run: whether to return a preview instead: the job's replicas, commands, outputs and price, and ``problem``
            if it could not run. Nothing is uploaded or recorded.

    Returns:
        The job. With `dry_run`, the preview, as the service's REST interface returns it.

    Raises:
        InvalidInputError: an argument is not valid, or a function uses something that a job cannot have.
        MissingInputError: a file, folder or module does not exist.
        ConflictError: the project has a job of this name.
        UnavailableError: the service does not respond, or none runs.
        StorageWriteError: the code could not be uploaded.
    """
    asked = read_config(config)
    search = asked.training_input.hyperparameters
    code = read_program(
        program,
        args=args,
        kwargs=kwargs or {},
        chosen=() if search is None else [param.parameter_name for param in search.params],
        strategy=strategy,
        folder=None if package_path is None else Path(package_path).expanduser().resolve(),
        naming=_argument_name,
    )
    if isinstance(packages, str):
        raise InvalidInputError("packages", received=packages, allowed="a list of files or URLs")
    code, needs = _with_requirements(code, requirements)
    given: dict[str, Any] = {
        "module_name": code.module,
        "user_args": code.args,
        "requirements": needs,
        "scale_tier": scale_tier,
        "master_machine_type": machine_type,
        "master_accelerator": _accelerator(accelerator),
        "master_image_uri": image_uri,
        "worker_count": worker_count,
        "worker_machine_type": worker_machine_type,
        "worker_accelerator": _accelerator(worker_accelerator),
        "parameter_server_count": parameter_server_count,
        "parameter_server_machine_type": parameter_server_machine_type,
        "region": region,
        "job_dir": None if job_dir is None else os.fspath(job_dir),
    }
    given = _with_scale_tier({key: value for key, value in given.items() if value not in (None, ())}, asked=asked)
    body: dict[str, Any] = {
        "jobId": name or asked.job_id or make_job_name(code.name),
        "trainingInput": merge_parameters(
            asked.training_input,
            given=given,
            variables=dict(env or {}),
            secrets=dict(secrets or {}),
            naming=_argument_name,
        ),
        "labels": {**asked.labels, **(labels or {})},
    }
    request = parse_job(body, source="submit")
    check_supported(request, given=given, naming=_argument_name)
    _check_environment(request, code)
    if client is not None and project not in (None, client.project):
        raise InvalidInputError("the client has another project", received=project, allowed=client.project)
    own_project = project or os.environ.get(PROJECT_VARIABLE) or DEFAULT_PROJECT
    with contextlib.nullcontext(client) if client is not None else Client.from_env(project=own_project) as service:
        preview = _send(body, request, code, packages=packages, bucket=staging_bucket, client=service, dry_run=dry_run)
    return Job(request.job_id, project=project, client=client).refresh() if preview is None else preview


def _argument_name(parameter: str) -> str:
    return _ARGUMENTS.get(parameter, parameter)


def _send(
    body: dict[str, Any],
    request: JobRequest,
    code: Code,
    *,
    packages: Sequence[str | os.PathLike[str]],
    bucket: str | None,
    client: Client,
    dry_run: bool,
) -> dict[str, Any] | None:
    """Stages the code and creates the job; or returns a preview of it, for a dry run."""
    urls = stage_code(
        request.training_input,
        folder=code.folder,
        added=code.added,
        name=code.name,
        packages=[os.fspath(package) for package in packages],
        staging=absolute_url(
            bucket or bucket_for_code(client, naming=_argument_name), what=_argument_name("staging_bucket")
        ),
        upload=not dry_run,
        naming=_argument_name,
    )
    body["trainingInput"]["packageUris"] = [*urls, *request.training_input.package_uris]
    if dry_run:
        return client.preview_job(body)
    client.create_job(body)
    return None


def _with_requirements(
    code: Code, requirements: str | os.PathLike[str] | Sequence[str] | None
) -> tuple[Code, str | None]:
    """Returns what a job runs with the packages that it needs, and the packed file that lists them.

    Raises:
        InvalidInputError: the file is outside the program's folder, or a requirement is not one line.
        MissingInputError: the file cannot be read.
    """
    if requirements is None:
        return code, None
    if isinstance(requirements, str | os.PathLike):
        file = Path(requirements).expanduser()
        if code.folder is not None:
            return code, requirements_path(file, folder=code.folder, naming=_argument_name)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise MissingInputError(
                f"requirements: {file} cannot be read: {error.strerror}",
                action="give packages as a list, such as ['scikit-learn']",
            ) from None
    else:
        wrong = [line for line in requirements if not line.strip() or "\n" in line]
        if wrong:
            raise InvalidInputError("requirements", received=wrong[0], allowed="one package in each text")
        content = "".join(f"{line}\n" for line in requirements).encode()
    return replace(code, added={**code.added, REQUIREMENTS_FILE: content}), REQUIREMENTS_FILE


def read_config(config: Config | None) -> JobConfig:
    """Returns a configuration, of which the content, the path or nothing is given.

    Raises:
        ConfigError: it is not valid.
        MissingInputError: there is no such file.
    """
    if config is None:
        return JobConfig()
    if isinstance(config, str | os.PathLike):
        path = Path(config).expanduser()
        return parse_config(read_yaml(path, flag="config"), source=str(path))
    return parse_config(dict(config), source="config")


def _accelerator(asked: Accelerator | None) -> dict[str, str] | None:
    if asked is None or isinstance(asked, str):
        return None if asked is None else accelerator_config(asked)
    kind, count = asked
    return accelerator_config(kind, count=str(count))


def _with_scale_tier(given: dict[str, Any], *, asked: JobConfig) -> dict[str, Any]:
    """Returns the parameters with the scale tier CUSTOM, if they name machines and nobody names a tier."""
    names_machines = any(key.endswith(_MACHINES) for key in given)
    is_open = "scale_tier" not in given and "scaleTier" not in asked.training_input.to_json()
    return {**given, "scale_tier": "CUSTOM"} if names_machines and is_open else given


def _check_environment(request: JobRequest, code: Code) -> None:
    """Refuses packages that no Python environment can have, if the file that lists them is one of the folder's."""
    asked = request.training_input.lockstep.environment
    if asked.requirements != REQUIREMENTS_FILE:
        source_of(code.folder, asked=asked, naming=_argument_name)
