"""The base classes of features, and functions that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.examples.arguments import check_array, check_range
from lockstep.data.examples.columns import Column, ListColumn
from lockstep.errors import InvalidInputError

NO_FIT: Final = "a value does not fit its feature"


class AbstractFeature(ABC):
    """One feature of a record: how it is encoded, and how the values of many records become an array.

    Attributes:
        list_key: the name of the records' feature with the values; None if it is the name in the specification.
        index_keys: the names of further features of the records, of int64, that tell where the values belong.
    """

    list_key: str | None = None
    index_keys: tuple[str, ...] = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of list that holds the values: ``bytes_list``, ``float_list`` or ``int64_list``."""

    @property
    @abstractmethod
    def num_values(self) -> int | None:
        """The number of values of a record; None if it differs from record to record."""

    @abstractmethod
    def assemble(self, column: Column) -> Any:
        """Returns the array of a batch; the caller may write to its elements.

        Args:
            column: the values of all records, only those of this kind, and the columns of the ``index_keys``.

        Raises:
            MisfitError: If a record has another number or kind of values than it should.
            InvalidInputError: If a value does not fit the feature.
        """

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """Returns a record's value in a form that `lockstep.data.encode_example` accepts.

        Raises:
            InvalidInputError: If the value does not fit the feature.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the description for a manifest; `feature_from_json` reads it."""


class MisfitError(Exception):
    """The values of a record do not fit a feature.

    Args:
        number: the number of the record in the batch; in a feature list, the number of the entry.
        reason: what is wrong; None if it is the number or kind of the values.
        index_key: the further feature (`AbstractFeature.index_keys`) that is wrong; None if it is the feature itself.
    """

    def __init__(self, number: int, *, reason: str | None = None, index_key: str | None = None) -> None:
        super().__init__(number)
        self.number = number
        self.reason = reason
        self.index_key = index_key


class AbstractListFeature(AbstractFeature):
    """A feature that a sequence example can have once for each of its steps, in a feature list."""

    @abstractmethod
    def assemble_lists(self, column: ListColumn) -> Any:
        """Returns the array of a batch of feature lists; see `assemble`.

        Args:
            column: the lists of all records.

        Raises:
            MisfitError: If an entry has another number or kind of values than it should; its number is the entry's.
            InvalidInputError: If a value does not fit the feature.
        """


class AbstractVaryingFeature(AbstractFeature):
    """Any number of values in each record, also none.

    Attributes:
        dtype: the dtype of the values, as for `FixedLenFeature`.
    """

    dtype: DTypeLike

    @property
    def kind(self) -> str:
        """See the base class."""
        return kind_of(self.dtype)

    @property
    def num_values(self) -> None:
        """None: the number differs from record to record."""
        return

    def encode(self, value: Any) -> Any:
        """Returns the values as an array of one dimension."""
        check_packable(self)
        array = check_array(value, self.dtype, what=NO_FIT)
        if array.ndim > 1:
            raise InvalidInputError(NO_FIT, received=array.shape, allowed="one dimension")
        return array.reshape(-1) if array.size else empty_array_of(self.dtype)


def check_packable(feature: AbstractFeature) -> None:
    """Checks that a feature can be packed: that it does not read other features of the record by their names.

    Raises:
        InvalidInputError: If the feature has a ``list_key`` or ``index_keys``.
    """
    keys = [key for key in (feature.list_key, *feature.index_keys) if key is not None]
    if keys:
        raise InvalidInputError(
            "a feature that reads others of the record cannot be packed as one",
            received=", ".join(keys),
            action="pack each of those by a feature of its own, such as VarLenFeature, and read them by this one",
        )


def kind_of(dtype: DTypeLike) -> str:
    """Returns the kind of list that holds values of a dtype."""
    kind = np.dtype(dtype).kind
    return "bytes_list" if kind == "O" else "float_list" if kind == "f" else "int64_list"


def empty_array_of(dtype: DTypeLike) -> np.ndarray:
    """Returns an empty array for which `lockstep.data.encode_example` keeps the kind of list of a dtype."""
    return np.empty(0, {"bytes_list": "S1", "float_list": np.float32, "int64_list": np.int64}[kind_of(dtype)])


def name_of_dtype(dtype: DTypeLike) -> str:
    """Returns a dtype's name for a manifest."""
    return "bytes" if np.dtype(dtype).kind == "O" else str(np.dtype(dtype))


def values_of(column: Column, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns a column's values as an array of one dimension, with a feature's dtype.

    Raises:
        InvalidInputError: If a number is out of the dtype's range.
    """
    if column.sizes is None:
        check_range(column.values, dtype)
        return column.values.astype(dtype, copy=False)
    objects = np.empty(len(column.sizes), object)
    objects[:] = column.to_bytes()
    return objects


def counts_of(column: Column) -> np.ndarray:
    """Returns the number of values of each record.

    Raises:
        MisfitError: If a record has values of another kind.
    """
    if (column.counts < 0).any():
        raise MisfitError(int(np.argmax(column.counts < 0)))
    return column.counts
