"""Checks the names that readers enter, as the REST interface checks those in its paths."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter, ValidationError

from lockstep.errors import InvalidInputError
from lockstep.service.api.requests import Name, Project
from lockstep.service.api.security.secrets import SecretName

_KINDS: Final = {
    "project": (TypeAdapter[str](Project), "small letters, digits and hyphens, beginning with a letter"),
    "model": (TypeAdapter[str](Name), "letters, digits and underscores, beginning with a letter"),
    "version": (TypeAdapter[str](Name), "letters, digits and underscores, beginning with a letter"),
    "secret": (TypeAdapter[str](SecretName), "letters, digits, hyphens and underscores"),
}


def check_name(text: str, *, what: str) -> str:
    """Returns a name, without the blanks around it.

    Args:
        text: what was entered.
        what: what it names: project, model, version or secret.

    Raises:
        InvalidInputError: If it cannot be such a name.
    """
    kind, allowed = _KINDS[what]
    try:
        return kind.validate_python(text.strip())
    except ValidationError:
        raise InvalidInputError(f"{what}: not a name", received=text.strip(), allowed=allowed) from None
