"""Parsing one ``tf.train.Example``: what a function in ``map`` asks for, record by record."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.data.examples.feature import AbstractFeature
from lockstep.data.examples.parsing import ExampleParser
from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.errors import InvalidInputError


def parse_single_example(serialized: bytes, features: Mapping[str, AbstractFeature]) -> dict[str, Any]:
    """Decodes one record into arrays, by the name of ``tf.io.parse_single_example``.

    `lockstep.data.parse_batch` of a batch of records (``.batch(n).map(...)``) is many times as fast.

    Args:
        serialized: the bytes of the message.
        features: those wanted, by name, such as `lockstep.data.FixedLenFeature`.

    Returns:
        By name an array of the feature's shape, or a `lockstep.data.SparseArray` or `lockstep.data.RaggedArray` of one
        dimension less than a batch has.

    Raises:
        CorruptDataError: the record is no such message.
        InvalidInputError: it lacks a feature, or has another kind or number of values; or this is no record.
    """
    if not isinstance(serialized, bytes):
        raise InvalidInputError(
            "a record to be parsed by parse_single_example",
            received=type(serialized).__name__,
            allowed="bytes",
            action="take lockstep.data.parse_batch for several at once",
        )
    return {name: _only_row(column) for name, column in _parser_of(features)([serialized]).items()}


def _parser_of(features: Mapping[str, AbstractFeature]) -> ExampleParser:
    try:
        return _known_parser(tuple(features.items()))
    except (TypeError, AttributeError):  # a default value that is an array has no hash; the parser refuses the rest
        return ExampleParser(features)


@functools.lru_cache(64)
def _known_parser(features: tuple[tuple[str, AbstractFeature], ...]) -> ExampleParser:
    return ExampleParser(dict(features))


def _only_row(column: Any) -> Any:
    if isinstance(column, SparseArray):
        return SparseArray(column.indices[:, 1:], column.values, column.dense_shape[1:])
    if isinstance(column, RaggedArray):
        return column.values
    if isinstance(column, Mapping):
        return {name: _only_row(member) for name, member in column.items()}
    return np.asarray(column)[0]
