"""Encodes and parses ``tf.train.SequenceExample``: a context, and feature lists with an entry for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np

from lockstep.data.arguments import describe_received
from lockstep.data.examples.columns import ColumnBuilder, ListColumn, ListColumnBuilder
from lockstep.data.examples.example import (
    SequenceExample,
    feature_values,
    named_values,
    parse_message,
    set_feature,
    set_features,
)
from lockstep.data.examples.feature import AbstractFeature, AbstractListFeature, MisfitError
from lockstep.data.examples.features import FixedLenSequenceFeature, SparseFeature
from lockstep.data.examples.parsing import (
    MIN_SCANNED,
    add_features,
    column_of,
    decode_message,
    error_with_name,
    misfit_error,
    scan_of,
)
from lockstep.data.examples.specification import keys_of, specification_of
from lockstep.data.files.record_batch import RecordBatch
from lockstep.errors import InvalidInputError, closest


class ParsedSequences(NamedTuple):
    """The same tuple of three as ``tf.io.parse_sequence_example`` returns.

    Attributes:
        context: the values of the context's features by name, in the same form as for examples.
        sequences: the values of the feature lists by name: an array of shape (num_records, most steps, *shape), a
            `lockstep.data.SparseArray` of three dimensions, or a `lockstep.data.RaggedArray` with one dimension more.
        lengths: the number of steps of each record for each `lockstep.data.FixedLenSequenceFeature`, by name, int64 of
            shape (num_records,).
    """

    context: dict[str, Any]
    sequences: dict[str, Any]
    lengths: dict[str, np.ndarray]


def encode_sequence_example(context: Mapping[str, Any], feature_lists: Mapping[str, Sequence[Any]]) -> bytes:
    """Encodes named values of a record, and named lists with values for each of its steps.

    Args:
        context: the values by name, as `lockstep.data.encode_example` accepts them.
        feature_lists: sequences of such values by name, with one value for each step. If some steps have floats, the
            integers of the others become floats, too.

    Returns:
        The bytes of the message, always the same for the same values.

    Raises:
        InvalidInputError: If a value is of another type, mixes types, is masked, or is out of the range of int64 or
            float32; if the steps of a list are of several types; or if a name is not text.
    """
    example = SequenceExample()
    for name, value in named_values(context):
        set_feature(example.context.feature[name], name, value)
    for name, values in named_values(feature_lists):
        if isinstance(values, bytes | str) or not isinstance(values, Sequence | np.ndarray):
            raise InvalidInputError(
                f"feature list {name!r} cannot be encoded",
                received=describe_received(values),
                allowed="a sequence of values, one for each step",
            )
        set_features(example.feature_lists.feature_list[name], name, values)
    return example.SerializeToString(deterministic=True)


def decode_sequence_example(
    data: bytes,
) -> tuple[dict[str, np.ndarray | list[bytes]], dict[str, list[np.ndarray | list[bytes]]]]:
    """Decodes a ``tf.train.SequenceExample`` without a specification of its features.

    Args:
        data: the bytes of one ``tf.train.SequenceExample``.

    Returns:
        The context's values by name, and the feature lists by name, each a list with the values of each step. All
        values are in the form of `lockstep.data.decode_example`.

    Raises:
        CorruptDataError: If the bytes are not such a message.
        InvalidInputError: If ``data`` is not bytes.
    """
    example = parse_message(SequenceExample, data)
    context = {name: feature_values(feature) for name, feature in sorted(example.context.feature.items())}
    lists = {
        name: [feature_values(feature) for feature in entries.feature]
        for name, entries in sorted(example.feature_lists.feature_list.items())
    }
    return context, lists


def parse_sequence_batch(
    records: Sequence[bytes],
    context_features: Mapping[str, AbstractFeature] | None = None,
    sequence_features: Mapping[str, AbstractListFeature] | None = None,
) -> ParsedSequences:
    """Decodes records into arrays, as `SequenceExampleParser` does."""
    return SequenceExampleParser(context_features, sequence_features)(records)


@final
class SequenceExampleParser:
    """Decodes batches of ``tf.train.SequenceExample`` messages into arrays, as ``tf.io.parse_sequence_example`` does.

    It may be called from any thread.

    Args:
        context_features: the features of the context to read, by name: `FixedLenFeature`, `VarLenFeature`,
            `RaggedFeature`, `RawFeature`.
        sequence_features: the feature lists to read, by name: `FixedLenSequenceFeature`, `VarLenFeature`,
            `RaggedFeature`.

    Raises:
        InvalidInputError: If both are empty, if a feature is of another class, or if two features read one feature of
            the records with different kinds of values.
    """

    def __init__(
        self,
        context_features: Mapping[str, AbstractFeature] | None = None,
        sequence_features: Mapping[str, AbstractListFeature] | None = None,
    ) -> None:
        self._context = specification_of({} if context_features is None else context_features)
        sequences = specification_of({} if sequence_features is None else sequence_features)
        if not self._context and not sequences:
            raise InvalidInputError(
                "the specification is empty", allowed="context_features, sequence_features, or both"
            )
        for name, feature in self._context.items():
            if isinstance(feature, FixedLenSequenceFeature | SparseFeature):
                allowed = "FixedLenFeature, VarLenFeature, RaggedFeature, RawFeature"
                raise _unusable(name, feature, where="a context", allowed=allowed)
        self._sequences: dict[str, AbstractListFeature] = {}
        for name, feature in sequences.items():
            if not isinstance(feature, AbstractListFeature):
                allowed = "FixedLenSequenceFeature, VarLenFeature, RaggedFeature"
                raise _unusable(name, feature, where="feature lists", allowed=allowed)
            self._sequences[name] = feature
        self._context_keys = keys_of(self._context)
        self._list_keys = keys_of(self._sequences)

    def __call__(self, records: Sequence[bytes]) -> ParsedSequences:
        """Decodes a batch.

        Args:
            records: the bytes of the messages, such as a `lockstep.data.RecordBatch`.

        Raises:
            CorruptDataError: If a record is not such a message.
            InvalidInputError: If a record lacks a feature or a feature list, or has another kind or number of values
                than the specification.
        """
        batch = RecordBatch.of(records)
        context = {key: ColumnBuilder(kind, num_records=len(batch)) for key, kind in self._context_keys.items()}
        lists = {key: ListColumnBuilder(kind, num_records=len(batch)) for key, kind in self._list_keys.items()}
        remaining = np.arange(len(batch))
        if len(remaining) >= MIN_SCANNED:
            remaining = self._scan(batch, remaining, context, lists)
        _parse_one_by_one(batch, remaining, context, lists)
        columns = {key: builder.build() for key, builder in context.items()}
        list_columns = {key: builder.build() for key, builder in lists.items()}
        parsed = ParsedSequences({}, {}, {})
        for name, feature in self._context.items():
            try:
                parsed.context[name] = feature.assemble(column_of(name, feature, columns))
            except MisfitError as error:
                features = _decode(batch, error.number).context.feature
                raise misfit_error(
                    error, name, feature, features, where=f"the context of record {error.number} of the batch"
                ) from None
            except InvalidInputError as error:
                raise error_with_name(error, name) from None
        for name, feature in self._sequences.items():
            column = _list_column(name, feature, list_columns, batch)
            parsed.sequences[name] = _assemble_lists(name, feature, column, batch)
            if isinstance(feature, FixedLenSequenceFeature):
                parsed.lengths[name] = column.num_entries.copy()
        return parsed

    def _scan(
        self,
        batch: RecordBatch,
        numbers: np.ndarray,
        context: Mapping[str, ColumnBuilder],
        lists: Mapping[str, ListColumnBuilder],
    ) -> np.ndarray:
        """Parses records together, field by field; returns the numbers of the remaining records, sorted."""
        scan = scan_of(batch, numbers)
        of_context, of_lists = scan.scan_sequences(self._context_keys, self._list_keys)
        for key, values in of_context.items():
            context[key].add_varying(replace(values, numbers=numbers[values.numbers]))
        for key, found in of_lists.items():
            lists[key].add_lists(numbers[found.numbers], found.num_entries, found.entries)
        return numbers[scan.unparsed]


def _parse_one_by_one(
    batch: RecordBatch,
    numbers: np.ndarray,
    context: Mapping[str, ColumnBuilder],
    lists: Mapping[str, ListColumnBuilder],
) -> None:
    for number in numbers.tolist():
        example = _decode(batch, number)
        add_features(number, example.context.feature, context)
        found = example.feature_lists.feature_list
        for key, column in lists.items():
            if key in found:
                column.add_record(number, [_values(feature, column.kind) for feature in found[key].feature])


def _decode(batch: RecordBatch, number: int) -> Any:
    return decode_message(SequenceExample, batch[number], number=number)


def _values(feature: Any, kind: str) -> Sequence[Any] | None:
    """Returns the values of an entry; None if they are of another kind."""
    found = feature.WhichOneof("kind")
    if found == kind:
        return getattr(feature, kind).value
    return () if found is None else None


def _list_column(
    name: str, feature: AbstractListFeature, columns: Mapping[str, ListColumn], batch: RecordBatch
) -> ListColumn:
    """Returns the column of a feature, with the columns of its ``index_keys``."""
    key = feature.list_key or name
    column = columns[key]
    if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing and not column.is_set.all():
        number = int(np.argmin(column.is_set))
        there = _decode(batch, number).feature_lists.feature_list
        raise InvalidInputError(
            f"record {number} of the batch lacks the feature list {key!r}",
            allowed=sorted(there) or "(the record has no feature list)",
            action=closest(key, there) or "say allow_missing=True where records may lack it",
        )
    if not feature.index_keys:
        return column
    for index_key in feature.index_keys:
        wrong = np.flatnonzero(columns[index_key].num_entries != column.num_entries)
        if wrong.size:
            number = int(wrong[0])
            found, wanted = int(columns[index_key].num_entries[number]), int(column.num_entries[number])
            raise InvalidInputError(
                f"feature list {name!r} of record {number} of the batch does not fit the specification",
                received=f"{found} steps of {index_key!r} for {wanted} steps of values",
                action="check how the record was written",
            )
    index_columns = {index_key: columns[index_key].entries for index_key in feature.index_keys}
    return replace(column, entries=replace(column.entries, index_columns=index_columns))


def _assemble_lists(name: str, feature: AbstractListFeature, column: ListColumn, batch: RecordBatch) -> Any:
    try:
        return feature.assemble_lists(column)
    except MisfitError as error:
        ends = np.cumsum(column.num_entries)
        number = int(np.searchsorted(ends, error.number, side="right"))
        step = error.number - int(ends[number] - column.num_entries[number])
        lists = _decode(batch, number).feature_lists.feature_list
        features = {key: entries.feature[step] for key, entries in lists.items() if step < len(entries.feature)}
        where = f"step {step} of record {number} of the batch"
        if isinstance(feature, FixedLenSequenceFeature):
            error.reason = _describe_step(features[feature.list_key or name], feature)
        raise misfit_error(error, name, feature, features, where=where) from None
    except InvalidInputError as error:
        raise error_with_name(error, name) from None


def _describe_step(found: Any, feature: FixedLenSequenceFeature) -> str:
    values = feature_values(found)
    kind = "no kind" if found.WhichOneof("kind") is None else "bytes" if isinstance(values, list) else values.dtype
    return f"{len(values)} values of {kind}, where a step has {feature.step_size} of {np.dtype(feature.dtype)}"


def _unusable(name: str, feature: AbstractFeature, *, where: str, allowed: str) -> InvalidInputError:
    return InvalidInputError(
        f"feature {name!r} is of a class that {where} cannot have", received=type(feature).__name__, allowed=allowed
    )
