"""Converts the flags of ``lockstep submit`` to a training input; flags take precedence over the ``--config`` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from lockstep.cli.console import absolute_url
from lockstep.errors import InvalidInputError
from lockstep.jobs.input.documents import JobRequest
from lockstep.jobs.input.spec import AcceleratorType, Role, TrainingInput, ignored, unsupported, with_reader_names
from lockstep.jobs.parsing.fields import variable_name_rule

_ROLES: Final = {
    "master": "master",
    "worker": "worker",
    "parameter_server": "parameterServer",
    "evaluator": "evaluator",
}
"""The prefix of each role's keys in the training input, by the prefix of its flags."""

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
"""The path of each flag's field in the training input, by the name of the flag's parameter."""


def flag_of(parameter: str) -> str:
    """Returns the flag of a parameter, such as ``--master-image-uri`` for ``master_image_uri``."""
    return "-- USER_ARGS" if parameter == "user_args" else f"--{parameter.replace('_', '-')}"


def given_flags(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of `FIELDS` that the user gave; an empty list of program arguments is not included."""
    asked = {name: parameters.get(name) for name in FIELDS}
    return {
        name: value
        for name, value in asked.items()
        if not (value is None or value is False or (isinstance(value, list | tuple) and not value))
    }


def merge_flags(asked: TrainingInput, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the training input of the file with the flags merged into it, and all local paths made absolute.

    Args:
        asked: the training input of the file.
        parameters: the command's parameters by name.

    Raises:
        InvalidInputError: a flag is not valid, or the service could not access a URL.
    """
    document: dict[str, Any] = asked.to_json()
    given = given_flags(parameters)
    own: dict[str, Any] = document.setdefault("lockstep", {})
    if "job_dir" in given:
        own.pop("baseOutputDirectory", None)
        given["job_dir"] = absolute_url(given["job_dir"], what="--job-dir")
    elif "jobDir" in document:
        document["jobDir"] = absolute_url(document["jobDir"], what="jobDir")
    if "baseOutputDirectory" in own:
        own["baseOutputDirectory"] = absolute_url(own["baseOutputDirectory"], what="baseOutputDirectory")
    if {"requirements", "no_environment"} & given.keys():
        own.pop("environment", None)
    if variables := read_variables(parameters.get("env") or ()):
        # For all roles, because the scale tier may decide which ones the job has; for the others they do no harm.
        own["env"] = {role: {**own.get("env", {}).get(role, {}), **variables} for role in get_args(Role)}
    for text in parameters.get("secret") or ():
        own["secrets"] = {**own.get("secrets", {}), **read_pairs(text, flag="--secret")}
    if hooks := read_webhooks(parameters.get("webhook") or (), secrets=parameters.get("webhook_secret") or ()):
        own["webhooks"] = [*own.get("webhooks", []), *hooks]
    document["packageUris"] = [absolute_url(url, what="packageUris") for url in document.get("packageUris", [])]
    for name, value in given.items():
        *parents, last = FIELDS[name]
        place = document
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = read_accelerator(value, flag=flag_of(name)) if last == "acceleratorConfig" else value
    return document


def check_supported(request: JobRequest, parameters: Mapping[str, Any]) -> None:
    """Rejects a job that this version does not support, and names the flag or the file's field.

    Raises:
        InvalidInputError: the job is not supported; the message has the first problem and the number of others.
    """
    problems = [with_reader_names(line, names=_flag_names(parameters)) for line in unsupported(request.training_input)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidInputError(problems[0] + more)


def ignored_lines(request: JobRequest, parameters: Mapping[str, Any]) -> list[str]:
    """Returns a line for each flag, or field of the file, that this version ignores."""
    return [with_reader_names(line, names=_flag_names(parameters)) for line in ignored(request.training_input)]


def _flag_names(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {f"trainingInput.{'.'.join(FIELDS[name])}": flag_of(name) for name in given_flags(parameters)}


def read_pairs(text: str, *, flag: str) -> dict[str, str]:
    """Parses ``key=value,key=value``.

    Raises:
        InvalidInputError: the text does not have this form.
    """
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not pairs or not all(key and sign for key, sign, _ in pairs):
        raise InvalidInputError(flag, received=text, allowed="key=value,key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_variables(texts: Sequence[str]) -> dict[str, str]:
    """Parses the values of ``--env``. Each is ``NAME=VALUE``; the value may be empty or any text.

    Args:
        texts: the values of ``--env``, one for each variable.

    Raises:
        InvalidInputError: a text does not have this form, or a name is not allowed or is given twice.
    """
    variables: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            # The variable's value in this process is not used, because the command would not show what is sent.
            raise InvalidInputError("--env", received=text, allowed="NAME=VALUE")
        allowed = variable_name_rule(name)
        if allowed is not None:
            raise InvalidInputError("--env", received=name, allowed=allowed)
        if name in variables:
            raise InvalidInputError("--env", received=f"{name} twice", allowed="each name once")
        variables[name] = value
    return variables


def read_webhooks(urls: Sequence[str], *, secrets: Sequence[str]) -> list[dict[str, str]]:
    """Parses the values of ``--webhook`` and ``--webhook-secret``: no secret, one for all webhooks, or one for each.

    Raises:
        InvalidInputError: there is another number of secrets.
    """
    if len(secrets) not in {0, 1, len(urls)} or len(secrets) > len(urls):
        raise InvalidInputError(
            "--webhook-secret",
            received=f"{len(secrets)} for {len(urls)} of --webhook",
            allowed="one for all of them, or one for each in their order",
        )
    if not secrets:
        return [{"url": url} for url in urls]
    names = list(secrets) * (len(urls) if len(secrets) == 1 else 1)
    return [{"url": url, "secret": name} for url, name in zip(urls, names, strict=True)]


def read_accelerator(text: str, *, flag: str) -> dict[str, str]:
    """Parses ``count=N,type=T``; the type may have gcloud's spelling, such as ``nvidia-tesla-v100``.

    Raises:
        InvalidInputError: the text does not have this form.
    """
    pairs = read_pairs(text, flag=flag)
    if not {"type"} <= set(pairs) <= {"count", "type"}:
        raise InvalidInputError(flag, received=text, allowed="count=N,type=T")
    contracts = pairs["type"].upper().replace("-", "_")
    known = contracts in set(AcceleratorType)
    return {"count": pairs.get("count", "1"), "type": contracts if known else pairs["type"]}
