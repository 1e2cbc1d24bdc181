"""Defines the scalar types of the contract's JSON, and the base class of its documents.

The contract is the public discovery document ``ml.v1.json``. Its JSON follows proto3's mapping: an int64 is written as
a string and read from a string or a number, a duration is a string such as ``"3600s"``, and a field with its default
value is left out.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Final, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, StrictBool, StrictStr
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from lockstep.topology import (
    CHECKPOINT_DIR,
    CLUSTER_SPEC,
    FRAMEWORK_VARIABLES,
    MODEL_DIR,
    TENSORBOARD_DIR,
    TF_CONFIG,
)

RULE: Final = "rule"
"""The type of the errors that this package raises inside Pydantic; ``ctx["allowed"]`` says what is allowed."""

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_DURATION = re.compile(r"([0-9]{1,12})(\.[0-9]{1,9})?s")
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_VARIABLES: Final = frozenset(
    {TF_CONFIG, CLUSTER_SPEC, MODEL_DIR, CHECKPOINT_DIR, TENSORBOARD_DIR, *FRAMEWORK_VARIABLES}
)
"""The variables that give a program its place in the job and its result folders; another value would break both."""
_OWN_PREFIX: Final = "LOCKSTEP_"
_MAX_VARIABLES = 100
FOREVER_S: Final = 253402300800.0
"""The end of the year 9999, in seconds since 1970 UTC; the contract cannot express later times."""
SECRET_NAME: Final = "[a-zA-Z][a-zA-Z0-9_-]{0,63}"  # noqa: S105 - a name's form, not a secret
"""The regular expression of a secret's name."""
_SECRET_NAME = re.compile(SECRET_NAME)
_DOLLARS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_JOB_ID = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,127}")
_MAX_LABELS = 64
_MAX_LABEL_LENGTH = 63


class AbstractDocument(BaseModel):
    """A message of the contract: frozen, with camelCase keys in JSON; unknown keys are rejected.

    Python code sets the fields by their snake_case names. Documents from outside are read by their camelCase keys only
    (`lockstep.jobs.parsing.rules.parse_document`).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    def to_json(self) -> dict[str, object]:
        """Returns the contract's JSON: camelCase keys, int64 as strings, and no fields with default values."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def rule_error(*, allowed: str, is_hidden: bool = False) -> PydanticCustomError:
    """Builds the error of a value that breaks a rule; the parser builds the message from it.

    Args:
        allowed: the description of what is allowed instead.
        is_hidden: whether the value may be a secret, which must not appear in an error message.
    """
    return PydanticCustomError(RULE, "allowed: {allowed}", {"allowed": allowed, "hidden": is_hidden})


def _read_int(value: object) -> object:
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    # In Python a bool is an int, and Pydantic would accept 2.0. Readers of the file see neither as a whole number.
    if isinstance(value, bool) or not isinstance(value, int):
        raise rule_error(allowed="a whole number")
    if abs(value) >= 2**63:
        raise rule_error(allowed="a whole number of 64 bits")
    return value


def _read_double(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise rule_error(allowed="a number")
    return value


def _read_dollars(value: object) -> object:
    # Quoted in the file, so that the amount never becomes a float between the file and the bill.
    if not (isinstance(value, str) and _DOLLARS.fullmatch(value)):
        raise rule_error(allowed='US dollars in quotes, such as "0.3800"')
    return Decimal(value)


def _check_duration(value: object) -> object:
    if not (isinstance(value, str) and _DURATION.fullmatch(value)):
        raise rule_error(allowed='seconds with an "s", such as "3600s"')
    return value


def _check_job_id(value: str) -> str:
    if not _JOB_ID.fullmatch(value):
        raise rule_error(allowed="1 to 128 letters, digits and underscores, starting with a letter")
    return value


def _is_label_text(text: str) -> bool:
    return all(c in "_-" or c.isdecimal() or (c.isalpha() and c == c.lower()) for c in text)


def _check_labels(value: object) -> object:
    if not isinstance(value, dict):
        raise rule_error(allowed="pairs of a key and a text value")
    labels = cast("dict[object, object]", value)
    if len(labels) > _MAX_LABELS:
        raise rule_error(allowed=f"at most {_MAX_LABELS} labels")
    for key, text in labels.items():
        if not (
            isinstance(key, str) and 0 < len(key) <= _MAX_LABEL_LENGTH and key[0].isalpha() and _is_label_text(key)
        ):
            raise rule_error(
                allowed="keys of 1 to 63 lower-case letters, digits, _ and -, starting with a letter",
            )
        if not (isinstance(text, str) and len(text) <= _MAX_LABEL_LENGTH and _is_label_text(text)):
            raise rule_error(allowed="text values of at most 63 lower-case letters, digits, _ and -")
    return labels


def check_variables(value: object) -> object:
    """Returns environment variables unchanged if their names are valid.

    Raises:
        PydanticCustomError: If a name is invalid or is one that Lockstep itself sets, or if there are more variables
            than Vertex AI allows.
    """
    if not isinstance(value, dict):
        raise rule_error(allowed="pairs of a name and a text value")
    variables = cast("dict[object, object]", value)
    if len(variables) > _MAX_VARIABLES:
        raise rule_error(allowed=f"at most {_MAX_VARIABLES} variables")
    for name in variables:
        allowed = variable_name_rule(name)
        if allowed is not None:
            raise rule_error(allowed=allowed)
    return variables


def variable_name_rule(name: object) -> str | None:
    """Describes which names are allowed if a job may not set an environment variable of this name; else returns None.

    Args:
        name: the variable's name.
    """
    if not (isinstance(name, str) and _VARIABLE.fullmatch(name)):
        return "names of letters, digits and underscores that do not begin with a digit"
    if name in _OWN_VARIABLES or name.startswith(_OWN_PREFIX):
        return f"another name: Lockstep itself sets {name}"
    return None


def duration_s(text: str) -> float:
    """Returns the seconds of a duration in the contract's form, such as ``"3600s"`` or ``"1.5s"``."""
    return float(text.removesuffix("s"))


Text = StrictStr
"""Text; numbers are rejected, since YAML reads an unquoted 3.10 as 3.1."""

Flag = StrictBool
"""true or false."""

Int64 = Annotated[int, BeforeValidator(_read_int), PlainSerializer(str, return_type=str, when_used="json")]
"""A whole number, read from a number or a string, written as a string."""

Int32 = Annotated[int, BeforeValidator(_read_int)]
"""A whole number, read from a number or a string, written as a number."""

Double = Annotated[float, BeforeValidator(_read_double)]
"""A finite number."""

Dollars = Annotated[Decimal, BeforeValidator(_read_dollars)]
"""An exact amount of US dollars: a decimal number, written in quotes."""

Duration = Annotated[str, BeforeValidator(_check_duration)]
"""A number of seconds as text: ``"3600s"``, with up to nine fractional digits."""

JobId = Annotated[StrictStr, AfterValidator(_check_job_id)]
"""A job's name: letters, digits and underscores, starting with a letter, at most 128."""


def _check_secret_name(value: str) -> str:
    if not _SECRET_NAME.fullmatch(value):
        raise rule_error(allowed="a secret's name: 1 to 64 letters, digits, _ and -, starting with a letter")
    return value


SecretName = Annotated[StrictStr, AfterValidator(_check_secret_name)]
"""A secret's name."""

Labels = Annotated[dict[str, str], BeforeValidator(_check_labels)]
"""The labels of a resource by key, according to Google Cloud's rules."""
