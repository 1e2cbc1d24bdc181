"""Parses batches of ``tf.train.Example`` messages into arrays.

Records of the same layout are parsed all at once (`lockstep.data.examples.record_layout`). Records of other layouts are
scanned together, field by field (`lockstep.data.examples.field_scan`). The parser of the protobuf library decodes the
remaining records one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
from google.protobuf import message

from lockstep.data.examples.columns import TYPE_OF_KIND, Column, ColumnBuilder
from lockstep.data.examples.example import Example
from lockstep.data.examples.feature import AbstractFeature, MisfitError
from lockstep.data.examples.features import FixedLenSequenceFeature
from lockstep.data.examples.field_scan import FieldScan
from lockstep.data.examples.record_layout import RecordLayout, ValuePositions, decode_integers, read_layout, take_spans
from lockstep.data.examples.specification import keys_of, specification_of
from lockstep.data.files.record_batch import RecordBatch
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, closest

MIN_RECORDS_PER_LAYOUT: Final = 4
"""The smallest number of records of the same length for which a layout is read."""

MAX_LAYOUTS: Final = 8
"""The largest number of layouts that are tried for the records of the same length in a batch."""

MIN_SCANNED: Final = 8
"""The smallest number of remaining records that are scanned together."""

MAX_REMEMBERED: Final = 256
"""The largest number of layouts, each of another length, that a parser remembers."""


def parse_batch(records: Sequence[bytes], spec: Mapping[str, AbstractFeature]) -> dict[str, Any]:
    """Decodes records into arrays; for many batches, `ExampleParser` does the same faster."""
    return ExampleParser(spec)(records)


def parse_example(record: bytes, spec: Mapping[str, AbstractFeature]) -> dict[str, Any]:
    """Decodes one record, as ``tf.io.parse_single_example`` does; `ExampleParser` decodes a batch far faster.

    Args:
        record: the bytes of a ``tf.train.Example``.
        spec: the features to read, by name, none of them sparse or ragged.

    Returns:
        The values of each feature, by name: an array of the feature's shape, such as (height, width), or a single value
        for the shape ().

    Raises:
        InvalidInputError: If a feature is sparse or ragged (`VarLenFeature`, ...), if the specification is not valid,
            or if the record lacks a feature or has another kind or number of values.
        CorruptDataError: If the record is not such a message.
    """
    columns = parse_batch([record], spec)
    for name, column in columns.items():
        if not isinstance(column, np.ndarray):
            raise InvalidInputError(
                f"feature {name!r} has any number of values",
                received=type(column).__name__,
                allowed="FixedLenFeature, FixedLenSequenceFeature, RawFeature",
                action="parse a batch: batch first, then map lockstep.data.ExampleParser(spec)",
            )
    return {name: column[0] for name, column in columns.items()}


@final
class ExampleParser:
    """Decodes batches of ``tf.train.Example`` messages into arrays, one for each feature of a specification.

    It remembers the record layouts that it has found, and may be called from any thread.

    Args:
        spec: the features to read, by name; other features of the records are ignored.

    Raises:
        InvalidInputError: If the specification is empty or not valid, if a feature cannot be used in examples, or if
            two features read one feature of the records with different kinds of values.
    """

    def __init__(self, spec: Mapping[str, AbstractFeature]) -> None:
        self._spec = specification_of(spec)
        if not self._spec:
            raise InvalidInputError("the specification is empty", allowed="one feature or more")
        self._keys = keys_of(self._spec)
        for feature in self._spec.values():
            if isinstance(feature, FixedLenSequenceFeature):
                feature.check_for_examples()
        self._layouts: dict[int, RecordLayout] = {}

    def __call__(self, records: Sequence[bytes]) -> dict[str, Any]:
        """Decodes a batch.

        Args:
            records: the bytes of the messages, such as a `lockstep.data.RecordBatch`.

        Returns:
            The values of each feature, by name: an array whose first dimension is the records, or a
            `lockstep.data.SparseArray` or `lockstep.data.RaggedArray`. The caller may write to them.

        Raises:
            CorruptDataError: If a record is not such a message.
            InvalidInputError: If a record lacks a feature, or has another kind or number of values than the
                specification.
        """
        batch = RecordBatch.of(records)
        builders = {key: ColumnBuilder(kind, num_records=len(batch)) for key, kind in self._keys.items()}
        remaining = self._parse_alike(batch, builders)
        if len(remaining) >= MIN_SCANNED:
            remaining = _scan(batch, remaining, builders)
        _parse_one_by_one(batch, remaining, builders)
        columns = {key: builder.build() for key, builder in builders.items()}
        arrays: dict[str, Any] = {}
        for name, feature in self._spec.items():
            try:
                arrays[name] = feature.assemble(column_of(name, feature, columns))
            except MisfitError as error:
                features = decode_message(Example, batch[error.number], number=error.number).features.feature
                where = f"record {error.number} of the batch"
                raise misfit_error(error, name, feature, features, where=where) from None
            except InvalidInputError as error:
                raise error_with_name(error, name) from None
        return arrays

    def _parse_alike(self, batch: RecordBatch, columns: Mapping[str, ColumnBuilder]) -> np.ndarray:
        """Parses the records that share a layout with others; returns the numbers of the remaining records, sorted."""
        remaining: list[np.ndarray] = []
        for numbers in _by_length(batch.lengths):
            waiting = numbers
            if len(numbers) >= MIN_RECORDS_PER_LAYOUT:
                waiting = self._parse_by_layout(numbers, batch.rows(numbers), columns)
            if len(waiting):
                remaining.append(waiting)
        return np.sort(np.concatenate(remaining)) if remaining else np.empty(0, np.intp)

    def _parse_by_layout(
        self, numbers: np.ndarray, rows: np.ndarray, columns: Mapping[str, ColumnBuilder]
    ) -> np.ndarray:
        """Parses records of the same length, layout by layout; returns the numbers of the remaining records."""
        length = rows.shape[1]
        known = self._layouts.get(length)
        for _ in range(MAX_LAYOUTS):
            layout = read_layout(rows[0].tobytes()) if known is None else known
            known = None
            if layout is None:
                return numbers
            found = layout.matches(rows, names=columns)
            if found.all():
                _add_alike(numbers, rows, layout, columns)
                self._remember(layout)
                return numbers[:0]
            if found.any():
                _add_alike(numbers[found], rows[found], layout, columns)
                numbers, rows = numbers[~found], rows[~found]
            if len(numbers) < MIN_RECORDS_PER_LAYOUT:
                break
        return numbers

    def _remember(self, layout: RecordLayout) -> None:
        if len(self._layouts) >= MAX_REMEMBERED:
            self._layouts.clear()
        self._layouts[layout.length] = layout


def _by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the numbers of all records of the same length, for each length."""
    if len(lengths) and (lengths == lengths[0]).all():
        yield np.arange(len(lengths))
        return
    order = np.argsort(lengths, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)


def _add_alike(
    numbers: np.ndarray, rows: np.ndarray, layout: RecordLayout, columns: Mapping[str, ColumnBuilder]
) -> None:
    for name, column in columns.items():
        positions = layout.features.get(name)
        if positions is None:
            continue
        if positions.kind != column.kind:
            column.mark_other_kind(numbers)
            continue
        values = take_spans(rows, positions.spans)
        if positions.kind == "bytes_list":
            column.add_block(numbers, values, sizes=[size for _, size in positions.spans])
        else:
            column.add_block(numbers, _numbers(values, positions))


def _numbers(values: np.ndarray, positions: ValuePositions) -> np.ndarray:
    if positions.has_continuation is None:
        return np.ascontiguousarray(values).view("<f4")
    return decode_integers(values, positions.has_continuation)


def _scan(batch: RecordBatch, numbers: np.ndarray, columns: Mapping[str, ColumnBuilder]) -> np.ndarray:
    """Parses records together, field by field; returns the numbers of the remaining records, sorted."""
    scan = scan_of(batch, numbers)
    for key, values in scan.scan_examples({key: column.kind for key, column in columns.items()}).items():
        columns[key].add_varying(replace(values, numbers=numbers[values.numbers]))
    return numbers[scan.unparsed]


def _parse_one_by_one(batch: RecordBatch, numbers: np.ndarray, columns: Mapping[str, ColumnBuilder]) -> None:
    for number in numbers.tolist():
        add_features(number, decode_message(Example, batch[number], number=number).features.feature, columns)


def decode_message(message_class: Any, data: bytes, *, number: int) -> Any:
    """Decodes a record with the parser of the protobuf library.

    Args:
        message_class: the class of the message.
        data: the bytes of the record.
        number: the number of the record in the batch, for the error.

    Raises:
        CorruptDataError: If the record is not such a message.
    """
    try:
        return message_class.FromString(data)
    except message.DecodeError:
        name = message_class.DESCRIPTOR.name
        raise CorruptDataError(f"record {number} of the batch is not a tf.train.{name}") from None


def scan_of(batch: RecordBatch, numbers: np.ndarray) -> FieldScan:
    """Returns the field scan of some records of a batch."""
    return FieldScan(batch.joined(numbers), lengths=batch.lengths[numbers])


def add_features(number: int, features: Any, columns: Mapping[str, ColumnBuilder]) -> None:
    """Adds the values of one record to columns, from the map of features in its message."""
    for key, column in columns.items():
        if key not in features:
            continue
        feature = features[key]
        kind = feature.WhichOneof("kind")
        if kind == column.kind:
            column.add_record(number, getattr(feature, kind).value)
        elif kind is not None:
            column.mark_other_kind(number)


def column_of(name: str, feature: AbstractFeature, columns: Mapping[str, Column]) -> Column:
    """Returns the column of a feature, with the columns of its ``index_keys``."""
    column = columns[feature.list_key or name]
    if not feature.index_keys:
        return column
    return replace(column, index_columns={key: columns[key] for key in feature.index_keys})


def misfit_error(
    error: MisfitError, name: str, feature: AbstractFeature, features: Any, *, where: str
) -> LockstepError:
    """Returns the error for a record that does not fit a feature.

    Args:
        error: what does not fit.
        name: the feature's name in the specification.
        feature: the feature of the specification.
        features: the record's features, as messages by name.
        where: the record, in words.
    """
    what = f"feature {name!r} of {where} does not fit the specification"
    if error.reason is not None:
        by = "" if error.index_key is None else f", by the feature {error.index_key!r}"
        return InvalidInputError(what, received=f"{error.reason}{by}", action="check how the record was written")
    key = error.index_key or feature.list_key or name
    if key not in features:
        return InvalidInputError(
            f"{where} lacks the feature {key!r}",
            allowed=sorted(features) or "(the record has no feature)",
            action=closest(key, features),
        )
    found = features[key].WhichOneof("kind")
    count = len(getattr(features[key], found).value) if found else 0
    num_values = None if error.index_key else feature.num_values
    wanted = "" if num_values is None else f"{num_values} "
    received = f"{count} values of {TYPE_OF_KIND.get(found or '', 'no kind')}"
    return InvalidInputError(
        what,
        received=received if error.index_key is None else f"{received} of the feature {error.index_key!r}",
        allowed=f"{wanted}values of {TYPE_OF_KIND['int64_list' if error.index_key else feature.kind]}",
    )


def error_with_name(error: InvalidInputError, name: str) -> InvalidInputError:
    """Returns an error whose message begins with a feature's name."""
    return InvalidInputError(f"feature {name!r}: {error.what}", received=error.received, allowed=error.allowed)
