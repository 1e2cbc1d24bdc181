"""Merges what a submitter asks for into the training input of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, get_args

from lockstep.errors import InvalidInputError
from lockstep.jobs.input.documents import JobRequest
from lockstep.jobs.input.spec import AcceleratorType, Role, TrainingInput, ignored, unsupported, with_reader_names
from lockstep.submission.naming import Naming
from lockstep.submission.urls import absolute_url

_ROLES: Final = {
    "master": "master",
    "worker": "worker",
    "parameter_server": "parameterServer",
    "evaluator": "evaluator",
}
"""The prefix of each role's keys in the training input, by the prefix of its parameters."""

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "scale_tier": ("scaleTier",),
    "job_dir": ("jobDir",),
    "region": ("region",),
    "module_name": ("pythonModule",),
    "python_version": ("pythonVersion",),
    "runtime_version": ("runtimeVersion",),
    "service_account": ("serviceAccount",),
    "enable_web_access": ("enableWebAccess",),
    "use_chief_in_tf_config": ("useChiefInTfConfig",),
    **{f"{flag}_machine_type": (f"{key}Type",) for flag, key in _ROLES.items()},
    **{f"{flag}_count": (f"{key}Count",) for flag, key in _ROLES.items() if key != "master"},
    **{f"{flag}_accelerator": (f"{key}Config", "acceleratorConfig") for flag, key in _ROLES.items()},
    **{f"{flag}_image_uri": (f"{key}Config", "imageUri") for flag, key in _ROLES.items()},
    "requirements": ("lockstep", "environment", "requirements"),
    "no_environment": ("lockstep", "environment", "none"),
    "user_args": ("args",),
}
"""The path of each parameter's field in the training input."""


def merge_parameters(
    asked: TrainingInput,
    *,
    given: Mapping[str, Any],
    variables: Mapping[str, str],
    secrets: Mapping[str, str],
    webhooks: Sequence[Mapping[str, str]] = (),
    naming: Naming,
) -> dict[str, Any]:
    """Returns a training input with a submitter's parameters merged into it, and all local paths made absolute.

    Args:
        asked: the training input of the configuration.
        given: the values of the parameters of `FIELDS` that the submitter gave; they take precedence.
        variables: environment variables for the programs of all replicas, by name.
        secrets: names of secrets, by the environment variables that hold them.
        webhooks: webhooks of the job, in the form of ``lockstep.webhooks``.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: the service could not access a URL.
    """
    document: dict[str, Any] = asked.to_json()
    values = dict(given)
    own: dict[str, Any] = document.setdefault("lockstep", {})
    if "job_dir" in values:
        own.pop("baseOutputDirectory", None)
        values["job_dir"] = absolute_url(values["job_dir"], what=naming("job_dir"))
    elif "jobDir" in document:
        document["jobDir"] = absolute_url(document["jobDir"], what="jobDir")
    if "baseOutputDirectory" in own:
        own["baseOutputDirectory"] = absolute_url(own["baseOutputDirectory"], what="baseOutputDirectory")
    if {"requirements", "no_environment"} & values.keys():
        own.pop("environment", None)
    if variables:
        # For all roles, because the scale tier may decide which ones the job has; for the others they do no harm.
        own["env"] = {role: {**own.get("env", {}).get(role, {}), **variables} for role in get_args(Role)}
    if secrets:
        own["secrets"] = {**own.get("secrets", {}), **secrets}
    if webhooks:
        own["webhooks"] = [*own.get("webhooks", []), *webhooks]
    document["packageUris"] = [absolute_url(url, what="packageUris") for url in document.get("packageUris", [])]
    for name, value in values.items():
        *parents, last = FIELDS[name]
        place = document
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = value
    return document


def accelerator_config(type_name: str, *, count: str = "1") -> dict[str, str]:
    """Returns the contract's ``acceleratorConfig``.

    Args:
        type_name: the type, in the contract's spelling or gcloud's: ``NVIDIA_TESLA_V100`` or ``nvidia-tesla-v100``.
        count: the number of accelerators of one machine.
    """
    contracts = type_name.upper().replace("-", "_")
    known = contracts in set(AcceleratorType)
    return {"count": count, "type": contracts if known else type_name}


def check_supported(request: JobRequest, *, given: Collection[str], naming: Naming) -> None:
    """Rejects a job that this version does not support, and names the parameter or the configuration's field.

    Args:
        request: the job.
        given: the parameters of `FIELDS` that the submitter gave.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: the job is not supported; the message has the first problem and the number of others.
    """
    names = _reader_names(given, naming=naming)
    problems = [with_reader_names(line, names=names) for line in unsupported(request.training_input)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidInputError(problems[0] + more)


def ignored_lines(request: JobRequest, *, given: Collection[str], naming: Naming) -> list[str]:
    """Returns a line for each parameter, or field of the configuration, that this version ignores.

    Args:
        request: the job.
        given: the parameters of `FIELDS` that the submitter gave.
        naming: how the submitter knows the parameters.
    """
    names = _reader_names(given, naming=naming)
    return [with_reader_names(line, names=names) for line in ignored(request.training_input)]


def _reader_names(given: Collection[str], *, naming: Naming) -> dict[str, str]:
    return {f"trainingInput.{'.'.join(FIELDS[name])}": naming(name) for name in given}
