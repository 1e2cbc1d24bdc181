"""Ragged features: values in rows of different lengths, in any number of dimensions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.arguments import check_dtype, check_int, check_name, describe_received
from lockstep.data.examples.arguments import check_range, dtype_of
from lockstep.data.examples.columns import Column, ListColumn
from lockstep.data.examples.feature import (
    AbstractListFeature,
    AbstractVaryingFeature,
    MisfitError,
    counts_of,
    name_of_dtype,
    values_of,
)
from lockstep.data.examples.ragged import RaggedArray
from lockstep.errors import InvalidInputError

_SPLITS_DTYPES: Final = (np.dtype(np.int32), np.dtype(np.int64))


class AbstractPartition(ABC):
    """How the values of a `RaggedFeature` are divided into the rows of one more dimension."""

    name: ClassVar[str]
    """The partition's name in TensorFlow, used in manifests."""

    @property
    @abstractmethod
    def argument(self) -> str | int:
        """The partition's only argument, for a manifest."""

    @property
    @abstractmethod
    def index_key(self) -> str | None:
        """The name of the records' feature with the partition's numbers; None if it needs no feature."""


@dataclass(frozen=True)
class AbstractKeyedPartition(AbstractPartition):
    """A partition whose numbers are a feature of the records.

    Attributes:
        key: the name of that feature, which has int64 values.
    """

    key: str

    def __post_init__(self) -> None:
        check_name(self.key, of=f"the feature that RaggedFeature.{type(self).__name__} reads")

    @property
    def argument(self) -> str:
        """See the base class."""
        return self.key

    @property
    def index_key(self) -> str:
        """See the base class."""
        return self.key

    @abstractmethod
    def lengths(self, numbers: Column, *, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lengths of the new rows.

        Args:
            numbers: the partition's numbers of all records, none of them of another kind.
            num_rows: the number of items of each record that are divided into rows, int64 of shape (num_records,).

        Returns:
            The lengths of the new rows, record after record, int64; and the number of new rows of each record, int64 of
            shape (num_records,).

        Raises:
            MisfitError: If the numbers of a record are impossible.
        """


@final
@dataclass(frozen=True)
class RowLengths(AbstractKeyedPartition):
    """The feature contains the length of each row."""

    name = "row_lengths"

    def lengths(self, numbers: Column, *, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        return numbers.values, numbers.counts


@final
@dataclass(frozen=True)
class RowLimits(AbstractKeyedPartition):
    """The feature contains the end of each row."""

    name = "row_limits"

    def lengths(self, numbers: Column, *, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        return _differences(numbers.values, numbers.counts), numbers.counts


@final
@dataclass(frozen=True)
class RowSplits(AbstractKeyedPartition):
    """The feature contains 0, and then the end of each row."""

    name = "row_splits"

    def lengths(self, numbers: Column, *, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        has_any = numbers.counts > 0
        first = (np.cumsum(numbers.counts) - numbers.counts)[has_any]
        wrong = np.flatnonzero(numbers.values[first] != 0)
        if wrong.size:
            raise MisfitError(int(np.flatnonzero(has_any)[wrong[0]]), reason="row splits that do not begin with 0")
        counts = numbers.counts - has_any
        return _differences(np.delete(numbers.values, first), counts), counts


@final
@dataclass(frozen=True)
class RowStarts(AbstractKeyedPartition):
    """The feature contains the start of each row."""

    name = "row_starts"

    def lengths(self, numbers: Column, *, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        has_any = numbers.counts > 0
        ends = np.roll(numbers.values, -1)
        last = (np.cumsum(numbers.counts) - 1)[has_any]
        ends[last] = num_rows[has_any]
        return ends - numbers.values, numbers.counts


@final
@dataclass(frozen=True)
class ValueRowIds(AbstractKeyedPartition):
    """The feature contains the row number of each value; the numbers never decrease."""

    name = "value_rowids"

    def lengths(self, numbers: Column, *, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        records = np.repeat(np.arange(len(num_rows)), numbers.counts)
        falls = _differences(numbers.values, numbers.counts) < 0
        if falls.any():
            raise MisfitError(int(records[np.argmax(falls)]), reason="row numbers that are negative or fall")
        wrong = np.flatnonzero(numbers.counts != num_rows)
        if wrong.size:
            number = int(wrong[0])
            raise MisfitError(number, reason=f"{numbers.counts[number]} row numbers for {num_rows[number]} values")
        has_any = numbers.counts > 0
        last = np.full(len(num_rows), -1)
        last[has_any] = numbers.values[(np.cumsum(numbers.counts) - 1)[has_any]]
        wrong = np.flatnonzero(last > num_rows + _MAX_EMPTY_ROWS)  # before the result takes too much memory
        if wrong.size:
            number = int(wrong[0])
            reason = f"row number {last[number]} for {num_rows[number]} values: more than {_MAX_EMPTY_ROWS} empty rows"
            raise MisfitError(number, reason=reason)
        new_rows = last + 1
        first = np.cumsum(new_rows) - new_rows
        return np.bincount(numbers.values + first[records], minlength=int(new_rows.sum())), new_rows


_MAX_EMPTY_ROWS: Final = 1 << 20


@final
@dataclass(frozen=True)
class UniformRowLength(AbstractPartition):
    """All rows have the same length.

    Attributes:
        length: the number of items in each row, 1 or more.
    """

    length: int
    name = "uniform_row_length"

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_int(self.length, name="a uniform row length", minimum=1))

    @property
    def argument(self) -> int:
        """See the base class."""
        return self.length

    @property
    def index_key(self) -> None:
        """See the base class."""
        return


def _differences(limits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the differences between consecutive numbers of each record; the first number of a record is kept."""
    lengths = np.diff(limits, prepend=0)
    first = (np.cumsum(counts) - counts)[counts > 0]
    lengths[first] = limits[first]
    return lengths


_PARTITIONS: Final[Mapping[str, type[Any]]] = {
    made_by.name: made_by for made_by in (RowSplits, RowLengths, RowStarts, RowLimits, ValueRowIds, UniformRowLength)
}


@final
@dataclass(frozen=True)
class RaggedFeature(AbstractVaryingFeature, AbstractListFeature):
    """Any number of values in each record, as rows of different lengths: ``tf.io.RaggedFeature``.

    Each partition adds a dimension between the records and the values. If the last partitions are uniform, the values
    are an array with more dimensions instead of ragged rows. Partitions are always checked, even without ``validate``:
    where a partition does not fit the values of its record, TensorFlow would use values of the next record.

    Attributes:
        dtype: the dtype of the values, as for `FixedLenFeature`.
        value_key: the name of the records' feature with the values; None for the name in the specification.
        partitions: how the values are divided into rows, from the outermost dimension to the innermost:
            ``RaggedFeature.RowSplits``, ``RowLengths``, ``RowStarts``, ``RowLimits``, ``ValueRowIds``, each with the
            name of the records' feature with the numbers, or ``UniformRowLength`` with a length.
        row_splits_dtype: the dtype of ``row_splits`` in the result: int32 or int64.
        validate: accepted as in TensorFlow, without effect: partitions are always checked.

    Raises:
        InvalidInputError: If an argument is of another type.
    """

    RowSplits: ClassVar = RowSplits
    RowLengths: ClassVar = RowLengths
    RowStarts: ClassVar = RowStarts
    RowLimits: ClassVar = RowLimits
    ValueRowIds: ClassVar = ValueRowIds
    UniformRowLength: ClassVar = UniformRowLength

    dtype: DTypeLike
    value_key: str | None = None
    partitions: Sequence[AbstractPartition] = ()
    row_splits_dtype: DTypeLike = np.int32
    validate: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        name = "a ragged feature's row_splits_dtype"
        splits_dtype = check_dtype(self.row_splits_dtype, name=name, kinds="i", allowed="int32, int64")
        if splits_dtype not in _SPLITS_DTYPES:
            raise InvalidInputError(name, received=str(splits_dtype), allowed="int32, int64")
        object.__setattr__(self, "row_splits_dtype", splits_dtype)
        if self.value_key is not None:
            check_name(self.value_key, of="a ragged feature's values, value_key")
        object.__setattr__(self, "partitions", _check_partitions(self.partitions))
        object.__setattr__(self, "list_key", self.value_key)
        keys = [partition.index_key for partition in self.partitions]
        object.__setattr__(self, "index_keys", tuple(dict.fromkeys(key for key in keys if key is not None)))

    def assemble(self, column: Column) -> RaggedArray:
        """Returns the values, divided into each record's rows."""
        splits = self._splits(counts_of(column))
        rows = RaggedArray(values=values_of(column, np.dtype(self.dtype)), row_splits=splits)
        for partition in reversed(self.partitions):
            rows = self._cut(rows, partition, column.index_columns)
        return rows

    def assemble_lists(self, column: ListColumn) -> RaggedArray:
        """Returns the values, divided into records, and then into the rows of each entry."""
        return RaggedArray(values=self.assemble(column.entries), row_splits=self._splits(column.num_entries))

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "type": "ragged",
            "dtype": name_of_dtype(self.dtype),
            "row_splits_dtype": str(np.dtype(self.row_splits_dtype)),
            **({} if self.value_key is None else {"value_key": self.value_key}),
            **({} if not self.partitions else {"partitions": [[one.name, one.argument] for one in self.partitions]}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RaggedFeature:
        """Reads the description of a manifest; see `lockstep.data.examples.features.feature_from_json` for errors."""
        return cls(
            document["dtype"],
            document.get("value_key"),
            [_PARTITIONS[name](argument) for name, argument in document.get("partitions", ())],
            document["row_splits_dtype"],
        )

    def _splits(self, lengths: np.ndarray) -> np.ndarray:
        splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        check_range(splits[-1:], np.dtype(self.row_splits_dtype))  # the last one is the largest
        return splits.astype(self.row_splits_dtype)

    def _cut(self, rows: RaggedArray, partition: AbstractPartition, index_columns: Mapping[str, Column]) -> RaggedArray:
        """Divides each record's rows into rows of one more dimension."""
        num_rows = rows.row_lengths.astype(np.int64)
        if isinstance(partition, UniformRowLength):
            return self._cut_evenly(rows, num_rows, partition.length)
        assert isinstance(partition, AbstractKeyedPartition)
        numbers = index_columns[partition.key]
        try:
            lengths, new_rows = partition.lengths(_of_one_kind(numbers, key=partition.key), num_rows=num_rows)
        except MisfitError as error:
            raise MisfitError(error.number, reason=error.reason, index_key=partition.key) from None
        records = np.repeat(np.arange(len(num_rows)), new_rows)
        if (lengths < 0).any():
            number = int(records[np.argmax(lengths < 0)])
            raise MisfitError(number, reason="rows of a negative length", index_key=partition.key)
        if (lengths > num_rows.sum()).any():  # so that their sum cannot overflow
            number = int(records[np.argmax(lengths > num_rows.sum())])
            raise MisfitError(number, reason="a row longer than all values", index_key=partition.key)
        found = np.bincount(records, lengths, minlength=len(num_rows)).astype(np.int64)
        wrong = np.flatnonzero(found != num_rows)
        if wrong.size:
            number = int(wrong[0])
            reason = f"rows of {found[number]} values in all, where there are {num_rows[number]}"
            raise MisfitError(number, reason=reason, index_key=partition.key)
        inner = RaggedArray(values=rows.values, row_splits=self._splits(lengths))
        return RaggedArray(values=inner, row_splits=self._splits(new_rows))

    def _cut_evenly(self, rows: RaggedArray, num_rows: np.ndarray, length: int) -> RaggedArray:
        wrong = np.flatnonzero(num_rows % length)
        if wrong.size:
            number = int(wrong[0])
            raise MisfitError(number, reason=f"{num_rows[number]} values do not divide into rows of {length}")
        num_new = int(num_rows.sum()) // length
        if isinstance(rows.values, RaggedArray):
            values = RaggedArray(values=rows.values, row_splits=self._splits(np.full(num_new, length)))
        else:
            values = rows.values.reshape(num_new, length, *rows.values.shape[1:])
        return RaggedArray(values=values, row_splits=self._splits(num_rows // length))


def _check_partitions(value: Any) -> tuple[AbstractPartition, ...]:
    if isinstance(value, Sequence) and all(isinstance(partition, AbstractPartition) for partition in value):
        return tuple(value)
    classes = ", ".join(f"RaggedFeature.{made_by.__name__}" for made_by in _PARTITIONS.values())
    raise InvalidInputError(
        "a ragged feature's partitions",
        received=describe_received(value),
        allowed=f"a sequence of {classes}, each with its argument",
        action='write them as in [RaggedFeature.RowLengths("name of the feature that has them")]',
    )


def _of_one_kind(numbers: Column, *, key: str) -> Column:
    if (numbers.counts < 0).any():
        raise MisfitError(int(np.argmax(numbers.counts < 0)), index_key=key)
    return numbers
