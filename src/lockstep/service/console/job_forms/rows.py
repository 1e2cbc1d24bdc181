"""The parts of the form with a row for each entry: secrets and webhooks. The last row adds another entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import InvalidInputError
from lockstep.service.console.job_forms.documents import TRAINING, Document
from lockstep.service.console.job_forms.fields import with_value

SECRETS: Final = (TRAINING, "lockstep", "secrets")
WEBHOOKS: Final = (TRAINING, "lockstep", "webhooks")
MAX_ROWS: Final = 100
_SECRETS_NAME: Final = ".".join(SECRETS)
_WEBHOOKS_NAME: Final = ".".join(WEBHOOKS)


@final
@dataclass(frozen=True, kw_only=True)
class SecretRow:
    """A secret of the project, and the environment variable that passes it to the programs.

    Attributes:
        variable: the variable; "" in the row that adds one.
        secret: the name of the secret; "" for none yet.
    """

    variable: str = ""
    secret: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class WebhookRow:
    """A webhook of the job.

    Attributes:
        url: its URL; "" if it is not known, or in the row that adds one.
        secret: the name of the secret that signs its messages; "" for none.
        states: the states that it is notified of, which are edited in the text.
    """

    url: str = ""
    secret: str = ""
    states: str = ""


def secret_rows(document: Mapping[str, Any]) -> list[SecretRow] | None:
    """Returns the secrets of a document; None if they can only be edited in the text."""
    found = _inner(document, SECRETS)
    if found is None:
        return []
    if not isinstance(found, dict) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        return None
    return [SecretRow(variable=variable, secret=secret) for variable, secret in found.items()]


def webhook_rows(document: Mapping[str, Any]) -> list[WebhookRow] | None:
    """Returns the webhooks of a document; None if they can only be edited in the text."""
    found = _inner(document, WEBHOOKS)
    if found is None:
        return []
    if not isinstance(found, list) or not all(_is_webhook(hook) for hook in found):
        return None
    return [
        WebhookRow(
            url=hook.get("url", ""), secret=hook.get("secret", ""), states=", ".join(map(str, hook.get("states") or ()))
        )
        for hook in found
    ]


def given_secrets(given: Mapping[str, str]) -> list[SecretRow]:
    """Returns the rows of secrets in a form."""
    rows: list[SecretRow] = []
    for index in range(MAX_ROWS):
        variable, secret = (given.get(f"{_SECRETS_NAME}.{index}.{part}") for part in ("variable", "secret"))
        if variable is None or secret is None:
            break
        rows.append(SecretRow(variable=variable.strip(), secret=secret.strip()))
    return rows


def with_rows(document: Mapping[str, Any], *, given: Mapping[str, str]) -> Document:
    """Returns a document with the secrets and webhooks of a form, if they differ.

    Raises:
        InvalidInputError: If a row cannot be put into the document.
    """
    return _with_webhooks(_with_secrets(document, given=given), given=given)


def _with_secrets(document: Mapping[str, Any], *, given: Mapping[str, str]) -> Document:
    before, rows = secret_rows(document), [row for row in given_secrets(given) if row != SecretRow()]
    if before is None or f"{_SECRETS_NAME}.0.variable" not in given or rows == before:
        return dict(document)
    variables = [row.variable for row in rows]
    if "" in variables:
        raise InvalidInputError(f"{_SECRETS_NAME}: a secret has no environment variable", action="name the variable")
    if len(set(variables)) < len(variables):
        raise InvalidInputError(f"{_SECRETS_NAME}: a variable is given twice", allowed="each variable once")
    return with_value(document, SECRETS, {row.variable: row.secret for row in rows} or None)


def _with_webhooks(document: Mapping[str, Any], *, given: Mapping[str, str]) -> Document:
    before = webhook_rows(document)
    if before is None:
        return dict(document)
    hooks: Sequence[Mapping[str, Any]] = _inner(document, WEBHOOKS) or []
    edited: list[dict[str, Any]] = []
    for index in range(MAX_ROWS):
        name = f"{_WEBHOOKS_NAME}.{index}"
        if f"{name}.url" not in given:
            edited += [dict(hook) for hook in hooks[index:]]
            break
        hook = dict(hooks[index]) if index < len(hooks) else {}
        for part in ("url", "secret"):
            text = given.get(f"{name}.{part}", "").strip()
            if text:
                hook[part] = text
            else:
                hook.pop(part, None)
        if f"{name}.remove" not in given and (hook or index < len(hooks)):
            edited.append(hook)
    return dict(document) if edited == list(hooks) else with_value(document, WEBHOOKS, edited or None)


def _inner(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Returns a value of a document; None if it is missing."""
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_webhook(hook: object) -> bool:
    return isinstance(hook, dict) and all(isinstance(hook.get(part, ""), str) for part in ("url", "secret"))
