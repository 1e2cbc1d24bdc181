"""Parses documents into models, and turns Pydantic's validation errors into one-line messages a person can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from lockstep.errors import ConfigError, closest
from lockstep.jobs.parsing.fields import RULE

Model = TypeVar("Model", bound=BaseModel)

_VIOLATIONS: Final = "violations"
_MISSING: Final = object()

_ALLOWED_BY_TYPE: Final = {
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "invalid_key": "keys that are text",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}


@final
@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule about several fields that a document breaks.

    Attributes:
        path: the keys and indices from the model to the field, spelled as in the document.
        allowed: the description of what is allowed there.
        received: the value; None if the field is missing.
    """

    path: tuple[str | int, ...]
    allowed: str
    received: object = None


def raise_violations(violations: Iterable[Violation]) -> None:
    """Raises all violations in one error that Pydantic accepts from a validator; does nothing if there are none.

    Raises:
        PydanticCustomError: If there is a violation. The error carries all of them.
    """
    found = list(violations)
    if found:
        raise PydanticCustomError(_VIOLATIONS, "the fields do not fit together", {_VIOLATIONS: found})


def parse_document(model: type[Model], *, document: object, source: str) -> Model:
    """Parses a document, as a YAML or JSON parser returned it, into a model, by its camelCase keys.

    Args:
        model: the class of the result.
        document: the parsed document; None (an empty file) means no keys.
        source: the name of the document in error messages: a file's name, or "request".

    Raises:
        ConfigError: If the document does not fit the model. The message names the first problem and counts the others.
    """
    content: object = {} if document is None else document
    if not isinstance(content, dict):
        raise ConfigError(source, received=content, allowed="keys and values")
    try:
        return model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [problem for details in error.errors(include_url=False) for problem in _problems(details, model)]
        # A wrong field says more than a broken rule about several fields. Pydantic checks in that order.
        first = problems[0]
        others = f"(and {len(problems) - 1} more)" if len(problems) > 1 else None
        actions = " ".join(part for part in (first.action, others) if part)
        raise ConfigError(
            f"{source}: {first.what}", received=first.received, allowed=first.allowed, action=actions or None
        ) from None
    except RecursionError:
        raise ConfigError(source, allowed="a document that does not contain itself") from None


@final
@dataclass(frozen=True, kw_only=True)
class _Problem:
    what: str
    received: object = None
    allowed: str | tuple[str, ...] | None = None
    action: str | None = None


def _problems(details: ErrorDetails, model: type[BaseModel]) -> list[_Problem]:
    path = details["loc"]
    received: object = details["input"]
    context = details.get("ctx", {})
    kind = details["type"]
    if kind == _VIOLATIONS:
        return [_broken_rule(path, violation) for violation in cast("list[Violation]", context[_VIOLATIONS])]
    if kind == "extra_forbidden":
        return [_unknown_key(path, model)]
    what = _spell(path)
    if kind == "missing":
        return [_Problem(what=f"{what} is missing")]
    if received is None:
        what += " is empty"
    if kind == RULE:
        shown = None if context["hidden"] else received
        return [_Problem(what=what, received=shown, allowed=str(context["allowed"]))]
    if kind == "enum":
        names = _enum_names(_annotation(model, path))
        return [_Problem(what=what, received=received, allowed=names, action=closest(str(received), names))]
    if kind == "string_type":
        return [_Problem(what=what, received=received, allowed="text", action=_quote_hint(received))]
    allowed = _ALLOWED_BY_TYPE.get(kind, details["msg"].removeprefix("Input should be "))
    return [_Problem(what=what, received=received, allowed=allowed)]


def _quote_hint(received: object) -> str | None:
    quotable = isinstance(received, int | float) and not isinstance(received, bool)
    return "write it in quotes" if quotable else None


def _broken_rule(path: tuple[str | int, ...], violation: Violation) -> _Problem:
    what = _spell((*path, *violation.path))
    if violation.received is None:
        what += " is missing"
    return _Problem(what=what, received=violation.received, allowed=violation.allowed)


def _unknown_key(path: tuple[str | int, ...], model: type[BaseModel]) -> _Problem:
    owner = _model_of(_annotation(model, path[:-1]))
    known = _aliases(owner)
    key = str(path[-1])
    nested = next((name for name in known if key in _aliases(_model_of(_annotation(model, (*path[:-1], name))))), None)
    near = closest(key, known) or (f"put it under {nested}" if nested else None)
    return _Problem(what=f"unknown key {_spell(path)}", allowed=None if near else tuple(known), action=near)


def _spell(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _aliases(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _annotation(model: type[BaseModel], path: tuple[str | int, ...]) -> object:
    """Returns the type that keys and indices lead to through nested models; `_MISSING` if they lead nowhere."""
    kind: object = model
    for part in path:
        if isinstance(part, int):
            kind = next((arg for arg in get_args(kind) if arg is not Ellipsis), _MISSING)
            continue
        owner = _model_of(kind)
        fields: Mapping[str, Any] = {} if owner is None else owner.model_fields
        kind = next((field.annotation for name, field in fields.items() if part in (field.alias, name)), _MISSING)
    return kind


def _members(kind: object) -> list[object]:
    """Returns the alternatives of ``X | None``; for any other type, the type itself."""
    return list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]


def _model_of(kind: object) -> type[BaseModel] | None:
    return next((m for m in _members(kind) if isinstance(m, type) and issubclass(m, BaseModel)), None)


def _enum_names(kind: object) -> tuple[str, ...]:
    enums = [member for member in _members(kind) if isinstance(member, type) and issubclass(member, Enum)]
    return tuple(str(item.value) for item in enums[0]) if enums else ()
