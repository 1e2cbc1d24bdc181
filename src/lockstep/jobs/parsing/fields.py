"""The scalar types of the contract's JSON, and the base of its documents.

The contract is the public discovery document ``ml.v1.json``, whose JSON follows proto3's mapping: int64 is written as a
string and read as a string or a number, a duration is text such as ``"3600s"``, and a field at its default is left out.
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
"""Type of the errors that this room raises inside Pydantic: ``ctx["allowed"]`` says what is allowed."""

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_DURATION = re.compile(r"([0-9]{1,12})(\.[0-9]{1,9})?s")
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_VARIABLES: Final = frozenset(
    {TF_CONFIG, CLUSTER_SPEC, MODEL_DIR, CHECKPOINT_DIR, TENSORBOARD_DIR, *FRAMEWORK_VARIABLES}
)
"""What tells a program its place in the job and where its results belong; another value would break both."""
_OWN_PREFIX: Final = "LOCKSTEP_"
_MAX_VARIABLES = 100
FOREVER_S: Final = 253402300800.0
"""The end of the year 9999: later times have no form in the contract."""
SECRET_NAME: Final = "[a-zA-Z][a-zA-Z0-9_-]{0,63}"  # noqa: S105 - a name's form, not a secret
"""A secret's name, as a regular expression."""
_SECRET_NAME = re.compile(SECRET_NAME)
_DOLLARS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_JOB_ID = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,127}")
_MAX_LABELS = 64
_MAX_LABEL_LENGTH = 63


class AbstractDocument(BaseModel):
    """A message of the contract: frozen, camelCase in JSON, unknown keys refused.

    In Python its fields are set by their snake_case names; documents from outside are read by their camelCase names
    alone (`lockstep.jobs.input.documents.parse_training_input`, `parse_job`).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    def to_json(self) -> dict[str, object]:
        """Returns the contract's JSON: camelCase, int64 as strings, fields at their defaults left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def rule_error(*, allowed: str, is_hidden: bool = False) -> PydanticCustomError:
    """Builds the error of a value that breaks a rule; the parser words it.

    Args:
        allowed: what is allowed instead.
        is_hidden: whether the value may be a secret, which no error repeats.
    """
    return PydanticCustomError(RULE, "allowed: {allowed}", {"allowed": allowed, "hidden": is_hidden})


def _read_int(value: object) -> object:
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    # A bool is an int to Python, and Pydantic would take 2.0: neither is a whole number to a reader of the file.
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
    # In quotes, so that no float comes between the file and the bill.
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
    """Returns environment variables by name as they are.

    Raises:
        PydanticCustomError: a name is not one, or is Lockstep's own; there are more than the successor allows.
    """
    if not isinstance(value, dict):
        raise rule_error(allowed="pairs of a name and a text value")
    variables = cast("dict[object, object]", value)
    if len(variables) > _MAX_VARIABLES:
        raise rule_error(allowed=f"at most {_MAX_VARIABLES} variables")
    for name in variables:
        allowed = allowed_variables(name)
        if allowed is not None:
            raise rule_error(allowed=allowed)
    return variables


def allowed_variables(name: object) -> str | None:
    """Returns what names are allowed where this is no name that a job may give to an environment variable; else None.

    Args:
        name: the name.
    """
    if not (isinstance(name, str) and _VARIABLE.fullmatch(name)):
        return "names of letters, digits and underscores that do not begin with a digit"
    if name in _OWN_VARIABLES or name.startswith(_OWN_PREFIX):
        return f"another name: Lockstep itself sets {name}"
    return None


def duration_s(text: str) -> float:
    """Returns the seconds of a duration such as ``"3600s"`` or ``"1.5s"``, as the contract writes one."""
    return float(text.removesuffix("s"))


Text = StrictStr
"""Text; numbers are refused, since YAML reads an unquoted 3.10 as 3.1."""

Flag = StrictBool
"""true or false."""

Int64 = Annotated[int, BeforeValidator(_read_int), PlainSerializer(str, return_type=str, when_used="json")]
"""A whole number, read from a number or a string, written as a string."""

Int32 = Annotated[int, BeforeValidator(_read_int)]
"""A whole number, read from a number or a string, written as a number."""

Double = Annotated[float, BeforeValidator(_read_double)]
"""A finite number."""

Dollars = Annotated[Decimal, BeforeValidator(_read_dollars)]
"""US dollars, exactly: a decimal, written in quotes."""

Duration = Annotated[str, BeforeValidator(_check_duration)]
"""Seconds as text: ``"3600s"``, with up to nine fractional digits."""

JobId = Annotated[StrictStr, AfterValidator(_check_job_id)]
"""A job's name: letters, digits and underscores, starting with a letter, at most 128."""


def _check_secret_name(value: str) -> str:
    if not _SECRET_NAME.fullmatch(value):
        raise rule_error(allowed="a secret's name: 1 to 64 letters, digits, _ and -, starting with a letter")
    return value


SecretName = Annotated[StrictStr, AfterValidator(_check_secret_name)]
"""A secret's name."""

Labels = Annotated[dict[str, str], BeforeValidator(_check_labels)]
"""Labels of a resource by key, by Google Cloud's rules."""
