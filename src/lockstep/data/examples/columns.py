"""Columns: the values of one feature in all records of a batch, concatenated in one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np

from lockstep.data.files.record_batch import windows

TYPE_OF_KIND: Final = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
"""The types that the lists of a ``tf.train.Feature`` hold, by the kinds of lists."""

OTHER_KIND: Final = -1
"""Stands in `Column.counts` for a record that has the feature with values of another kind."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """The values of one feature.

    Attributes:
        kind: the kind of list that holds the values: ``bytes_list``, ``float_list`` or ``int64_list``.
        counts: the number of values of each record, int64 of shape (num_records,); `OTHER_KIND` if they are of another
            kind.
        is_set: whether each record has the feature with a kind, bool of shape (num_records,).
        values: all values, record after record, float32 or int64 of shape (num_values,); for bytes, the concatenated
            bytes, uint8. The array may be written to.
        sizes: the length of each bytes value, int64 of shape (num_values,); None for numbers.
        index_columns: the columns of further features that tell where the values belong, by name.
    """

    kind: str
    counts: np.ndarray
    is_set: np.ndarray
    values: np.ndarray
    sizes: np.ndarray | None = None
    index_columns: Mapping[str, Column] = field(default_factory=dict[str, "Column"])

    def to_bytes(self) -> list[bytes]:
        """Returns the values of a column of bytes as a list."""
        assert self.sizes is not None
        ends = np.cumsum(self.sizes).tolist()
        whole = self.values.tobytes()
        return [whole[end - size : end] for end, size in zip(ends, self.sizes.tolist(), strict=True)]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ListColumn:
    """The values of one feature list: each record has a list of entries, and each entry has values.

    Attributes:
        num_entries: the number of entries of each record's list, int64 of shape (num_records,).
        is_set: whether each record has the list, bool of shape (num_records,).
        entries: the values of all entries, record after record, as a column whose records are the entries.
    """

    num_entries: np.ndarray
    is_set: np.ndarray
    entries: Column


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class VaryingValues:
    """The values of some records, with different numbers of values in each record.

    Attributes:
        numbers: the numbers of the records, integers of shape (k,).
        counts: the number of values of each record, int64 of shape (k,); `OTHER_KIND` if they are of another kind.
        is_set: whether each record has the feature with a kind, bool of shape (k,).
        values: all values, record after record; for bytes, the concatenated bytes, uint8.
        sizes: the length of each bytes value; None for numbers.
    """

    numbers: np.ndarray
    counts: np.ndarray
    is_set: np.ndarray
    values: np.ndarray
    sizes: np.ndarray | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """The values of some records, with the same number of values in each record, and for bytes the same sizes."""

    numbers: np.ndarray
    values: np.ndarray
    sizes: np.ndarray | None


@final
class ColumnBuilder:
    """Collects a column, block by block and record by record, in any order.

    Args:
        kind: the kind of list that holds the values.
        num_records: the number of records in the batch.
    """

    def __init__(self, kind: str, *, num_records: int) -> None:
        self.kind = kind
        self._counts = np.zeros(num_records, np.int64)
        self._is_set = np.zeros(num_records, bool)
        self._blocks: list[_Block] = []
        self._varying: list[VaryingValues] = []
        self._numbers: list[int] = []
        self._objects: list[Any] = []

    def add_block(self, numbers: np.ndarray, values: np.ndarray, *, sizes: Sequence[int] | None = None) -> None:
        """Adds the values of records that have the same number of values.

        Args:
            numbers: the numbers of the records, of shape (k,).
            values: float32 or int64 of shape (k, values per record); for bytes, uint8 of shape (k, bytes per record).
            sizes: the lengths of a record's bytes values, which are the same in each record; None for numbers.
        """
        self._counts[numbers] = values.shape[1] if sizes is None else len(sizes)
        self._is_set[numbers] = True
        self._blocks.append(
            _Block(numbers=numbers, values=values, sizes=None if sizes is None else np.array(sizes, np.int64))
        )

    def add_varying(self, added: VaryingValues) -> None:
        """Adds the values of records that have different numbers of values."""
        self._counts[added.numbers] = added.counts
        self._is_set[added.numbers] = added.is_set
        self._varying.append(added)

    def add_record(self, number: int, values: Sequence[Any]) -> None:
        """Adds the values of one record, which are numbers or bytes."""
        self._counts[number] = len(values)
        self._is_set[number] = True
        self._numbers.append(number)
        self._objects += values

    def mark_other_kind(self, numbers: np.ndarray | int) -> None:
        """Marks records that have values of another kind."""
        self._counts[numbers] = OTHER_KIND
        self._is_set[numbers] = True

    def build(self) -> Column:
        """Returns the column; records that were not added lack the feature."""
        values, sizes = self._build_bytes() if self.kind == "bytes_list" else (self._build_numbers(), None)
        return Column(kind=self.kind, counts=self._counts, is_set=self._is_set, values=values, sizes=sizes)

    def _build_numbers(self) -> np.ndarray:
        dtype = np.dtype(TYPE_OF_KIND[self.kind])
        if self._is_one_block:
            return np.ascontiguousarray(self._blocks[0].values, dtype).reshape(-1)
        if self._is_one_varying:
            return self._varying[0].values
        counts = np.maximum(self._counts, 0)
        values = np.empty(int(counts.sum()), dtype)
        starts = np.cumsum(counts) - counts
        for block in self._blocks:
            places = starts[block.numbers, np.newaxis] + np.arange(block.values.shape[1])
            values[places] = block.values
        for varying in self._varying:
            values[_places(starts, counts, varying.numbers)] = varying.values
        if self._numbers:
            values[_places(starts, counts, self._numbers)] = np.array(self._objects, dtype)
        return values

    def _build_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        if self._is_one_block:
            (block,) = self._blocks
            assert block.sizes is not None
            return np.ascontiguousarray(block.values).reshape(-1), np.tile(block.sizes, len(block.numbers))
        if self._is_one_varying:
            (varying,) = self._varying
            assert varying.sizes is not None
            return varying.values, varying.sizes
        counts = np.maximum(self._counts, 0)
        starts = np.cumsum(counts) - counts
        sizes = np.empty(int(counts.sum()), np.int64)
        for block in self._blocks:
            assert block.sizes is not None
            sizes[starts[block.numbers, np.newaxis] + np.arange(len(block.sizes))] = block.sizes
        for varying in self._varying:
            assert varying.sizes is not None
            sizes[_places(starts, counts, varying.numbers)] = varying.sizes
        places = _places(starts, counts, self._numbers)
        sizes[places] = [len(value) for value in self._objects]
        ends = np.cumsum(sizes)
        values = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
        for block in self._blocks:
            num_bytes = block.values.shape[1]
            if num_bytes:  # a record's values are contiguous in both arrays
                first = starts[block.numbers]
                runs = np.ascontiguousarray(block.values).view(f"V{num_bytes}").reshape(-1)
                windows(values, num_bytes)[ends[first] - sizes[first]] = runs
        for varying in self._varying:
            chosen = _places(starts, counts, varying.numbers)
            values[runs_of(ends[chosen] - sizes[chosen], sizes[chosen])] = varying.values
        for place, value in zip(places.tolist(), self._objects, strict=True):
            values[ends[place] - len(value) : ends[place]] = np.frombuffer(value, np.uint8)
        return values, sizes

    @property
    def _is_one_block(self) -> bool:
        """Whether a single block has all records, in order."""
        if len(self._blocks) != 1 or self._varying or self._numbers:
            return False
        return _covers_all(self._blocks[0].numbers, len(self._counts))

    @property
    def _is_one_varying(self) -> bool:
        """Whether a single call of `add_varying` added all records, in order."""
        if len(self._varying) != 1 or self._blocks or self._numbers:
            return False
        return _covers_all(self._varying[0].numbers, len(self._counts))


@final
class ListColumnBuilder:
    """Collects the column of a feature list, in any order of the records.

    Args:
        kind: the kind of list that holds the entries' values.
        num_records: the number of records in the batch.
    """

    def __init__(self, kind: str, *, num_records: int) -> None:
        self.kind = kind
        self._num_entries = np.zeros(num_records, np.int64)
        self._is_set = np.zeros(num_records, bool)
        self._added: list[tuple[np.ndarray, VaryingValues]] = []
        self._records: dict[int, list[Sequence[Any] | None]] = {}

    def add_lists(self, numbers: np.ndarray, num_entries: np.ndarray, entries: VaryingValues) -> None:
        """Adds the lists of several records.

        Args:
            numbers: the numbers of the records, of shape (k,).
            num_entries: the number of entries of each list, of shape (k,).
            entries: the values of the entries; its ``numbers`` are not used.
        """
        self._num_entries[numbers] = num_entries
        self._is_set[numbers] = True
        self._added.append((numbers, entries))

    def add_record(self, number: int, entries: list[Sequence[Any] | None]) -> None:
        """Adds one record's list: the values of each entry, or None for an entry with values of another kind."""
        self._num_entries[number] = len(entries)
        self._is_set[number] = True
        self._records[number] = entries

    def build(self) -> ListColumn:
        """Returns the column; records that were not added lack the list."""
        starts = np.cumsum(self._num_entries) - self._num_entries
        column = ColumnBuilder(self.kind, num_records=int(self._num_entries.sum()))
        for numbers, entries in self._added:
            column.add_varying(replace(entries, numbers=_places(starts, self._num_entries, numbers)))
        for number, entries in self._records.items():
            for place, values in enumerate(entries, start=int(starts[number])):
                if values is None:
                    column.mark_other_kind(place)
                else:
                    column.add_record(place, values)
        return ListColumn(num_entries=self._num_entries, is_set=self._is_set, entries=column.build())


def runs_of(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the indices of all items of some runs, one run after another.

    Args:
        starts: the index of the first item of each run, integers of shape (k,).
        lengths: the number of items of each run, integers of shape (k,).
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _places(starts: np.ndarray, counts: np.ndarray, numbers: np.ndarray | list[int]) -> np.ndarray:
    """Returns the indices of all values of some records, one record after another."""
    chosen = np.asarray(numbers, np.intp)
    return runs_of(starts[chosen], counts[chosen])


def _covers_all(numbers: np.ndarray, num_records: int) -> bool:
    return len(numbers) == num_records and bool((numbers == np.arange(num_records)).all())
