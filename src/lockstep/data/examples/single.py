"""Parses a single ``tf.train.Example``, as a function in ``map`` does for each record."""

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

    `lockstep.data.parse_batch` on batches of records (``.batch(n).map(...)``) is many times faster.

    Args:
        serialized: the bytes of the record.
        features: the features to read, by name, such as `lockstep.data.FixedLenFeature`.

    Returns:
        The values of each feature, by name: an array of the feature's shape, or a `lockstep.data.SparseArray` or
        `lockstep.data.RaggedArray` with one dimension less than for a batch. (A `RaggedFeature` without partitions
        gives an array.)

    Raises:
        CorruptDataError: If the record is not a ``tf.train.Example``.
        InvalidInputError: If the record lacks a feature, or has another kind or number of values; or if
            ``serialized`` is not bytes.
    """
    if not isinstance(serialized, bytes):
        raise InvalidInputError(
            "a record to be parsed by parse_single_example",
            received=type(serialized).__name__,
            allowed="bytes",
            action="take lockstep.data.parse_batch for several at once",
        )
    return {name: _first_row(column) for name, column in _parser_of(features)([serialized]).items()}


def _parser_of(features: Mapping[str, AbstractFeature]) -> ExampleParser:
    try:
        return _known_parser(tuple(features.items()))
    except (TypeError, AttributeError):  # a default value may be an unhashable array; the parser rejects the rest
        return ExampleParser(features)


@functools.lru_cache(64)
def _known_parser(features: tuple[tuple[str, AbstractFeature], ...]) -> ExampleParser:
    return ExampleParser(dict(features))


def _first_row(column: Any) -> Any:
    if isinstance(column, SparseArray):
        return SparseArray(column.indices[:, 1:], column.values, column.dense_shape[1:])
    if isinstance(column, RaggedArray):
        return column.values
    if isinstance(column, Mapping):
        return {name: _first_row(member) for name, member in column.items()}
    return np.asarray(column)[0]
