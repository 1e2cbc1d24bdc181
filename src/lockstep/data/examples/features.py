"""What the features of a record are: how its values are encoded, and what a batch of them becomes.

A record's features are described by name. `FixedLenFeature`, `VarLenFeature` and `RaggedFeature` are what ``tf.io``
calls so; `RawFeature` is for an array kept as its own bytes, such as an image of uint8.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.examples.columns import Column
from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.errors import CorruptDataError, InvalidInputError


class AbstractFeature(ABC):
    """One feature of a record: how it is encoded, and how its values of many records become an array."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The list that holds it: ``bytes_list``, ``float_list`` or ``int64_list``."""

    @property
    @abstractmethod
    def num_values(self) -> int | None:
        """How many values a record has; None where that is each record's own affair."""

    @abstractmethod
    def assemble(self, column: Column) -> Any:
        """Makes the array of a batch, of which the caller may write the elements.

        Args:
            column: the values of all records. Those of this kind alone are in it.

        Raises:
            MisfitError: a record has another number or kind of values than it should.
            InvalidInputError: a value does not fit the feature.
        """

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """Returns a record's value in a form that `lockstep.data.encode_example` takes.

        Raises:
            InvalidInputError: the value does not fit the feature.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the description for a manifest; `feature_from_json` reads it."""


class MisfitError(Exception):
    """A record does not have what a feature asks for.

    Args:
        number: the record's number in the batch.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@final
@dataclass(frozen=True)
class FixedLenFeature(AbstractFeature):
    """The same number of values in each record, as ``tf.io.FixedLenFeature``, whose order of arguments it has.

    Attributes:
        shape: the array's shape for one record; () for one value.
        dtype: the type of the values: int64 or float32 (or another of their kind, to which they are cast when they
            are read: int32, uint8, bool, float16, float64), or bytes.
        default_value: for records without the feature: one value, or an array of the shape. None: each needs it.

    Raises:
        InvalidInputError: the type is not of the three kinds, or the default has another shape.
    """

    shape: Sequence[int]
    dtype: DTypeLike
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        if self.default_value is not None:
            self._flat_default()

    @property
    def kind(self) -> str:
        """See the base class."""
        return _kind(self.dtype)

    @property
    def num_values(self) -> int:
        """See the base class."""
        return int(np.prod(self.shape, dtype=np.int64))

    def assemble(self, column: Column) -> np.ndarray:
        """Returns an array of ``dtype`` (object for bytes) and shape (num_records, *shape)."""
        shape = (len(column.counts), *self.shape)
        fits = column.counts == self.num_values
        lacks = ~column.is_set if self.default_value is not None else np.zeros_like(fits)
        if not (fits | lacks).all():
            raise MisfitError(int(np.argmin(fits | lacks)))
        values = _values(column, np.dtype(self.dtype))
        if not lacks.any():
            return values.reshape(shape)
        filled = np.empty((len(fits), self.num_values), values.dtype)
        filled[lacks] = np.array(self._flat_default(), values.dtype)
        filled[fits & ~lacks] = values.reshape(-1, self.num_values)
        return filled.reshape(shape)

    def encode(self, value: Any) -> Any:
        """Returns the values as a list."""
        return self._flat(value) or np.empty(0, np.float32 if self.kind == "float_list" else np.int64)

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {"type": "fixed", "shape": list(self.shape), "dtype": _dtype_name(self.dtype)}

    def _flat_default(self) -> list[Any]:
        if np.ndim(self.default_value) == 0:
            return [self.default_value] * self.num_values
        return self._flat(self.default_value)

    def _flat(self, value: Any) -> list[Any]:
        array = np.asarray(value, object if self.kind == "bytes_list" else self.dtype)
        if array.shape != tuple(self.shape) and not array.size == self.num_values == 1:
            raise InvalidInputError(
                "a value does not fit its feature", received=array.shape, allowed=f"shape {self.shape}"
            )
        return array.reshape(-1).tolist()


@final
@dataclass(frozen=True)
class RawFeature(AbstractFeature):
    """An array kept as its own bytes in a feature of one bytes value: its elements in C order, little-endian.

    It is what ``tf.io.decode_raw`` followed by a reshape reads. An image of 28 x 28 uint8 takes 784 bytes so.

    Attributes:
        shape: the array's shape for one record.
        dtype: the elements' type: any of fixed size.
    """

    shape: Sequence[int]
    dtype: DTypeLike = np.uint8

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if np.dtype(self.dtype).kind not in "biufc":
            raise InvalidInputError("a raw feature's dtype", received=str(self.dtype), allowed="a number of fixed size")

    @property
    def kind(self) -> str:
        """See the base class."""
        return "bytes_list"

    @property
    def num_values(self) -> int:
        """See the base class."""
        return 1

    @property
    def size_bytes(self) -> int:
        """How long the bytes of one record are."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def assemble(self, column: Column) -> np.ndarray:
        """Returns an array of ``dtype`` and shape (num_records, *shape)."""
        if (column.counts != 1).any():
            raise MisfitError(int(np.argmax(column.counts != 1)))
        assert column.sizes is not None
        wrong = np.flatnonzero(column.sizes != self.size_bytes)
        if wrong.size:
            raise InvalidInputError(
                f"the bytes of record {wrong[0]} of the batch do not fit the feature",
                received=f"{column.sizes[wrong[0]]} bytes",
                allowed=f"{self.size_bytes} bytes: {np.dtype(self.dtype)} of shape {self.shape}",
            )
        stored = np.dtype(self.dtype).newbyteorder("<")
        return column.values.view(stored).astype(self.dtype, copy=False).reshape(len(column.counts), *self.shape)

    def encode(self, value: Any) -> Any:
        """Returns the array's bytes; bytes of the right length are taken as they are."""
        if isinstance(value, bytes):
            fits = len(value) == self.size_bytes
        else:
            value = np.asarray(value)
            fits = value.shape == tuple(self.shape) and np.can_cast(value.dtype, np.dtype(self.dtype), "safe")
        if not fits:
            received = f"{len(value)} bytes" if isinstance(value, bytes) else f"{value.dtype} of shape {value.shape}"
            raise InvalidInputError(
                "a value does not fit its feature",
                received=received,
                allowed=f"{np.dtype(self.dtype)} of shape {self.shape}",
            )
        if isinstance(value, bytes):
            return value
        return value.astype(np.dtype(self.dtype).newbyteorder("<"), copy=False).tobytes()

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {"type": "raw", "shape": list(self.shape), "dtype": str(self.dtype)}


class AbstractVaryingFeature(AbstractFeature):
    """Any number of values in each record, none too.

    Attributes:
        dtype: the type of the values, as `FixedLenFeature` takes it.
    """

    dtype: DTypeLike

    @property
    def kind(self) -> str:
        """See the base class."""
        return _kind(self.dtype)

    @property
    def num_values(self) -> None:
        """None: a record has as many as it has."""
        return

    def encode(self, value: Any) -> Any:
        """Returns the values as an array of one dimension."""
        array = np.asarray(value, self.dtype)
        if array.ndim > 1:
            raise InvalidInputError("a value does not fit its feature", received=array.shape, allowed="one dimension")
        array = array.reshape(-1)
        return array if array.size or self.kind != "bytes_list" else array.astype("S1")


@final
@dataclass(frozen=True)
class VarLenFeature(AbstractVaryingFeature):
    """Any number of values in each record, none too, as ``tf.io.VarLenFeature``.

    Attributes:
        dtype: the type of the values, as `FixedLenFeature` takes it.
    """

    dtype: DTypeLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype(self.dtype))

    def assemble(self, column: Column) -> SparseArray:
        """Returns the values with their places, each of them (record, position in it)."""
        counts = _counts(column)
        positions = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return SparseArray(
            indices=np.stack([np.repeat(np.arange(len(counts)), counts), positions], axis=1),
            values=_values(column, np.dtype(self.dtype)),
            dense_shape=np.array([len(counts), counts.max(initial=0)], np.int64),
        )

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {"type": "var_len", "dtype": _dtype_name(self.dtype)}


@final
@dataclass(frozen=True)
class RaggedFeature(AbstractVaryingFeature):
    """Any number of values in each record, as rows of their own length: ``tf.io.RaggedFeature`` without partitions.

    Attributes:
        dtype: the type of the values, as `FixedLenFeature` takes it.
        row_splits_dtype: the type of the rows' places: int32 or int64.
    """

    dtype: DTypeLike
    row_splits_dtype: DTypeLike = np.int32

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        object.__setattr__(self, "row_splits_dtype", np.dtype(self.row_splits_dtype))
        if self.row_splits_dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise InvalidInputError(
                "a ragged feature's row_splits_dtype", received=str(self.row_splits_dtype), allowed="int32, int64"
            )

    def assemble(self, column: Column) -> RaggedArray:
        """Returns the values with the places of each record's."""
        splits = np.concatenate([[0], np.cumsum(_counts(column))]).astype(self.row_splits_dtype)
        return RaggedArray(values=_values(column, np.dtype(self.dtype)), row_splits=splits)

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "type": "ragged",
            "dtype": _dtype_name(self.dtype),
            "row_splits_dtype": str(np.dtype(self.row_splits_dtype)),
        }


def _dtype(given: DTypeLike) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(object) if given in (bytes, str, "bytes", "string") else np.dtype(given)
    if dtype.kind not in "biufO":
        raise InvalidInputError("a feature's dtype", received=str(dtype), allowed="int64, float32, bytes")
    return dtype


def _kind(dtype: DTypeLike) -> str:
    kind = np.dtype(dtype).kind
    return "bytes_list" if kind == "O" else "float_list" if kind == "f" else "int64_list"


def _dtype_name(dtype: DTypeLike) -> str:
    return "bytes" if np.dtype(dtype).kind == "O" else str(np.dtype(dtype))


def _values(column: Column, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns a column's values as an array of one dimension, of a feature's type."""
    if column.sizes is None:
        return column.values.astype(dtype, copy=False)
    objects = np.empty(len(column.sizes), object)
    objects[:] = column.to_bytes()
    return objects


def _counts(column: Column) -> np.ndarray:
    if (column.counts < 0).any():
        raise MisfitError(int(np.argmax(column.counts < 0)))
    return column.counts


_FIXED: Final = ("shape", "dtype")
_FROM_JSON: Final[Mapping[str, tuple[type[AbstractFeature], Sequence[str]]]] = {
    "fixed": (FixedLenFeature, _FIXED),
    "raw": (RawFeature, _FIXED),
    "var_len": (VarLenFeature, ("dtype",)),
    "ragged": (RaggedFeature, ("dtype", "row_splits_dtype")),
}


def feature_from_json(document: Mapping[str, Any]) -> AbstractFeature:
    """Reads a feature's description from a manifest.

    Raises:
        CorruptDataError: it is not such a description.
    """
    try:
        made_by, names = _FROM_JSON[document["type"]]
        return made_by(*(document[name] for name in names))
    except (KeyError, TypeError, ValueError, InvalidInputError):
        raise CorruptDataError(
            "a feature's description is not usable",
            received=document,
            allowed=f'{{"type": one of {", ".join(_FROM_JSON)}, "shape": [...], "dtype": "..."}}',
        ) from None
