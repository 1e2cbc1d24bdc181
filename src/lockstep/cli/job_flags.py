"""Converts the flags of ``lockstep submit`` to a training input; flags take precedence over the ``--config`` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.errors import InvalidInputError
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.parsing.fields import variable_name_rule
from lockstep.submission.naming import flag_name
from lockstep.submission.training_inputs import FIELDS, accelerator_config, merge_parameters


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
    given = {
        name: read_accelerator(value, flag=flag_name(name)) if name.endswith("_accelerator") else value
        for name, value in given_flags(parameters).items()
    }
    secrets: dict[str, str] = {}
    for text in parameters.get("secret") or ():
        secrets |= read_pairs(text, flag="--secret")
    return merge_parameters(
        asked,
        given=given,
        variables=read_variables(parameters.get("env") or ()),
        secrets=secrets,
        webhooks=read_webhooks(parameters.get("webhook") or (), secrets=parameters.get("webhook_secret") or ()),
        naming=flag_name,
    )


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
    return accelerator_config(pairs["type"], count=pairs.get("count", "1"))
