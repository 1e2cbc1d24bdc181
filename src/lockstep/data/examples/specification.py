"""Checks specifications: mappings from names to the features that are read from records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstep.data.arguments import check_name, describe_received
from lockstep.data.examples.columns import TYPE_OF_KIND
from lockstep.data.examples.feature import AbstractFeature
from lockstep.errors import InvalidInputError

_CLASSES: Final = (
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "RawFeature",
    "SparseFeature",
    "VarLenFeature",
)
_EXAMPLE: Final = '{"label": FixedLenFeature((), np.int64)}'


def specification_of(value: Any) -> dict[str, AbstractFeature]:
    """Checks a specification, and returns it.

    Args:
        value: the value to check: a mapping from names to features.

    Raises:
        InvalidInputError: If the value is not such a mapping; the error names what is wrong.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            "a specification of features",
            received=describe_received(value),
            allowed=f"features by name, such as {_EXAMPLE}",
        )
    for name, feature in value.items():
        check_name(name, of="a feature in a specification")
        if not isinstance(feature, AbstractFeature):
            raise InvalidInputError(
                f"{name!r} of the specification is not a feature",
                received=describe_received(feature),
                allowed=f"{', '.join(_CLASSES)} of lockstep.data",
                action=_advice(feature),
            )
    return dict(value)


def keys_of(spec: Mapping[str, AbstractFeature]) -> dict[str, str]:
    """Returns the names of the records' features that a specification reads, with the kind of each.

    Raises:
        InvalidInputError: If a feature is read with two kinds.
    """
    keys: dict[str, str] = {}
    for name, feature in spec.items():
        wanted = {feature.list_key or name: feature.kind} | dict.fromkeys(feature.index_keys, "int64_list")
        for key, kind in wanted.items():
            if keys.setdefault(key, kind) != kind:
                raise InvalidInputError(
                    f"the feature {key!r} of the records is requested with two kinds of values",
                    received=f"{TYPE_OF_KIND[keys[key]]} and {TYPE_OF_KIND[kind]}",
                    allowed="one of them",
                )
    return keys


def _advice(value: Any) -> str:
    if isinstance(value, type):
        return f"write a feature with its arguments, such as {_EXAMPLE}"
    name = type(value).__name__
    return f"use the class {name} of lockstep.data" if name in _CLASSES else f"write it as in {_EXAMPLE}"
