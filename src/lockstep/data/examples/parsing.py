"""Parsing: a batch of ``tf.train.Example`` messages becomes arrays.

Records of one layout (`lockstep.data.examples.record_layout`) are parsed all at once; what is left goes through the
protocol buffers' own parser, record by record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from google.protobuf import message

from lockstep.data.examples.columns import TYPE_OF_KIND, ColumnBuilder
from lockstep.data.examples.example import Example
from lockstep.data.examples.features import AbstractFeature, MisfitError
from lockstep.data.examples.record_layout import Places, RecordLayout, decode_integers, read_layout, take_spans
from lockstep.data.files.record_batch import RecordBatch
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, closest

MIN_ALIKE: Final = 4
"""Records of one length that are worth the search for a layout."""

MAX_LAYOUTS: Final = 8
"""Layouts that are searched for among the records of one length in a batch."""

MAX_REMEMBERED: Final = 256
"""Layouts, each of another length, that a parser remembers."""


def parse_batch(records: Sequence[bytes], spec: Mapping[str, AbstractFeature]) -> dict[str, Any]:
    """Decodes records into arrays, as `ExampleParser` does, which is faster where there are many batches."""
    return ExampleParser(spec)(records)


@final
class ExampleParser:
    """Decodes batches of ``tf.train.Example`` messages into arrays, one for each feature; others are left out.

    It remembers the layouts that it has met, and may be called from any thread.

    Args:
        spec: the features wanted, by name.
    """

    def __init__(self, spec: Mapping[str, AbstractFeature]) -> None:
        self._spec = dict(spec)
        self._layouts: dict[int, RecordLayout] = {}

    def __call__(self, records: Sequence[bytes]) -> dict[str, Any]:
        """Decodes a batch.

        Args:
            records: the bytes of the messages, such as a `lockstep.data.RecordBatch`.

        Returns:
            By name what the feature makes of a batch: an array whose first dimension is the records, or a
            `lockstep.data.SparseArray` or `lockstep.data.RaggedArray`. A caller may write to it.

        Raises:
            CorruptDataError: a record is no such message.
            InvalidInputError: a record lacks a feature, or has another kind or number of values than the
                specification.
        """
        batch = RecordBatch.of(records)
        columns = {name: ColumnBuilder(feature.kind, num_records=len(batch)) for name, feature in self._spec.items()}
        _parse_one_by_one(batch, self._parse_alike(batch, columns), columns)
        arrays: dict[str, Any] = {}
        for name, feature in self._spec.items():
            try:
                arrays[name] = feature.assemble(columns[name].build())
            except MisfitError as error:
                raise _mismatch(error.number, batch[error.number], name, feature) from None
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"feature {name!r}: {error.what}", received=error.received, allowed=error.allowed
                ) from None
        return arrays

    def _parse_alike(self, batch: RecordBatch, columns: Mapping[str, ColumnBuilder]) -> np.ndarray:
        """Parses the records that share a layout with others; returns the numbers of all others, sorted."""
        left: list[np.ndarray] = []
        for numbers in _by_length(batch.lengths):
            waiting = numbers
            if len(numbers) >= MIN_ALIKE:
                waiting = self._parse_by_layout(numbers, batch.rows(numbers), columns)
            if len(waiting):
                left.append(waiting)
        return np.sort(np.concatenate(left)) if left else np.empty(0, np.intp)

    def _parse_by_layout(
        self, numbers: np.ndarray, rows: np.ndarray, columns: Mapping[str, ColumnBuilder]
    ) -> np.ndarray:
        """Parses records of one length, layout by layout; returns the numbers of those that are left."""
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
            if len(numbers) < MIN_ALIKE:
                break
        return numbers

    def _remember(self, layout: RecordLayout) -> None:
        if len(self._layouts) >= MAX_REMEMBERED:
            self._layouts.clear()
        self._layouts[layout.length] = layout


def _by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the numbers of the records of each length."""
    if len(lengths) and (lengths == lengths[0]).all():
        yield np.arange(len(lengths))
        return
    order = np.argsort(lengths, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)


def _add_alike(
    numbers: np.ndarray, rows: np.ndarray, layout: RecordLayout, columns: Mapping[str, ColumnBuilder]
) -> None:
    for name, column in columns.items():
        places = layout.features.get(name)
        if places is None:
            continue
        if places.kind != column.kind:
            column.add_other_kind(numbers)
            continue
        values = take_spans(rows, places.spans)
        if places.kind == "bytes_list":
            column.add_block(numbers, values, sizes=[size for _, size in places.spans])
        else:
            column.add_block(numbers, _numbers(values, places))


def _numbers(values: np.ndarray, places: Places) -> np.ndarray:
    if places.continues is None:
        return np.ascontiguousarray(values).view("<f4")
    return decode_integers(values, places.continues)


def _parse_one_by_one(batch: RecordBatch, numbers: np.ndarray, columns: Mapping[str, ColumnBuilder]) -> None:
    decode = Example.FromString
    for number in numbers.tolist():
        try:
            features = decode(batch[number]).features.feature
        except message.DecodeError:
            raise CorruptDataError(f"record {number} of the batch is not a tf.train.Example") from None
        for name, column in columns.items():
            if name not in features:
                continue
            feature = features[name]
            kind = feature.WhichOneof("kind")
            if kind == column.kind:
                column.add_record(number, getattr(feature, kind).value)
            elif kind is not None:
                column.add_other_kind(number)


def _mismatch(number: int, data: bytes, name: str, feature: AbstractFeature) -> LockstepError:
    features = Example.FromString(data).features.feature
    if name not in features:
        return InvalidInputError(
            f"record {number} of the batch lacks the feature {name!r}",
            allowed=sorted(features) or "(the record has no feature)",
            action=closest(name, features),
        )
    found = features[name].WhichOneof("kind")
    count = len(getattr(features[name], found).value) if found else 0
    wanted = "" if feature.num_values is None else f"{feature.num_values} "
    return InvalidInputError(
        f"feature {name!r} of record {number} of the batch does not fit the specification",
        received=f"{count} values of {TYPE_OF_KIND.get(found or '', 'no kind')}",
        allowed=f"{wanted}values of {TYPE_OF_KIND[feature.kind]}",
    )
