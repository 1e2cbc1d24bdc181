"""The flags of ``lockstep submit`` as a training input; flags win over what the file says."""

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
"""The training input's keys of roles, by the flags' beginnings."""

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
"""Where in a training input each flag stands, by its parameter's name."""


def flag_of(parameter: str) -> str:
    """Returns a parameter's flag: ``master_image_uri`` is ``--master-image-uri``."""
    return "-- USER_ARGS" if parameter == "user_args" else f"--{parameter.replace('_', '-')}"


def given_flags(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that somebody gave a value; no arguments of the program are none."""
    asked = {name: parameters.get(name) for name in FIELDS}
    return {
        name: value
        for name, value in asked.items()
        if not (value is None or value is False or (isinstance(value, list | tuple) and not value))
    }


def merge_flags(asked: TrainingInput, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the file asks for with the flags over it, every path of this machine absolute.

    Args:
        asked: what the file asks for.
        parameters: the verb's parameters by name.

    Raises:
        InvalidInputError: an accelerator is not ``count=N,type=T``; a place is one that the service could not find.
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
        # A role that the job has not got needs none; whether it has it may be decided by its scale tier.
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
    """Refuses what this version cannot honour: by the flag that asked for it, or by the file's field.

    Raises:
        InvalidInputError: the first of it, and how many more there are.
    """
    problems = [with_reader_names(line, names=_flag_names(parameters)) for line in unsupported(request.training_input)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidInputError(problems[0] + more)


def ignored_lines(request: JobRequest, parameters: Mapping[str, Any]) -> list[str]:
    """Names what this version leaves undone and the job goes on without: by the flag, or by the file's field."""
    return [with_reader_names(line, names=_flag_names(parameters)) for line in ignored(request.training_input)]


def _flag_names(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {f"trainingInput.{'.'.join(FIELDS[name])}": flag_of(name) for name in given_flags(parameters)}


def read_pairs(text: str, *, flag: str) -> dict[str, str]:
    """Reads ``key=value,key=value``.

    Raises:
        InvalidInputError: it is not that.
    """
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not pairs or not all(key and sign for key, sign, _ in pairs):
        raise InvalidInputError(flag, received=text, allowed="key=value,key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_variables(texts: Sequence[str]) -> dict[str, str]:
    """Reads the flags ``--env``: each ``NAME=VALUE``, of which the value may be empty and hold anything.

    Args:
        texts: what was given, one for each variable.

    Raises:
        InvalidInputError: one is not that, a name is not allowed, or given twice.
    """
    variables: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            # Not the value that this process has: nobody would see what is sent.
            raise InvalidInputError("--env", received=text, allowed="NAME=VALUE")
        allowed = variable_name_rule(name)
        if allowed is not None:
            raise InvalidInputError("--env", received=name, allowed=allowed)
        if name in variables:
            raise InvalidInputError("--env", received=f"{name} twice", allowed="each name once")
        variables[name] = value
    return variables


def read_webhooks(urls: Sequence[str], *, secrets: Sequence[str]) -> list[dict[str, str]]:
    """Reads the flags ``--webhook`` and ``--webhook-secret``: one secret for all of them, or one for each.

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
    """Reads ``count=N,type=T``; types may be written as gcloud does, ``nvidia-tesla-v100``.

    Raises:
        InvalidInputError: it is not that.
    """
    pairs = read_pairs(text, flag=flag)
    if not {"type"} <= set(pairs) <= {"count", "type"}:
        raise InvalidInputError(flag, received=text, allowed="count=N,type=T")
    contracts = pairs["type"].upper().replace("-", "_")
    known = contracts in set(AcceleratorType)
    return {"count": pairs.get("count", "1"), "type": contracts if known else pairs["type"]}
