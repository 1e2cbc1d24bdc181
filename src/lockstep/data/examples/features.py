"""Classes that describe the features of a record: how values are encoded, and which arrays a batch of them becomes.

`FixedLenFeature`, `FixedLenSequenceFeature`, `VarLenFeature`, `SparseFeature` and `RaggedFeature` have the names and
meanings of ``tf.io``. `RawFeature` is for an array that is stored as its own bytes, such as an image of uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.arguments import check_dtype, check_int, check_name, describe_received
from lockstep.data.examples.arguments import check_array, check_shape, dtype_of
from lockstep.data.examples.columns import Column, ListColumn, runs_of
from lockstep.data.examples.feature import (
    NO_FIT,
    AbstractFeature,
    AbstractListFeature,
    AbstractVaryingFeature,
    MisfitError,
    counts_of,
    empty_array_of,
    kind_of,
    name_of_dtype,
    values_of,
)
from lockstep.data.examples.ragged import SparseArray
from lockstep.data.examples.ragged_feature import RaggedFeature
from lockstep.errors import CorruptDataError, InvalidInputError


@final
@dataclass(frozen=True)
class FixedLenFeature(AbstractFeature):
    """The same number of values in each record, as ``tf.io.FixedLenFeature``, with the same order of arguments.

    Attributes:
        shape: the shape of the array for one record; () for one value.
        dtype: the dtype of the values: int64, float32, bytes, or another dtype of integers, floats or truth values
            (int32, uint8, bool, float16, float64), to which values are cast when they are read.
        default_value: the value for records without the feature: one value, or as many as the shape has. With None,
            each record must have the feature.

    Raises:
        InvalidInputError: If the dtype is not of these kinds, or the default value has another shape.
    """

    shape: Sequence[int]
    dtype: DTypeLike
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape, of="a feature"))
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        if self.default_value is not None:
            self._flat_default()

    @property
    def kind(self) -> str:
        """See the base class."""
        return kind_of(self.dtype)

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
        values = values_of(column, np.dtype(self.dtype))
        if not lacks.any():
            return values.reshape(shape)
        filled = np.empty((len(fits), self.num_values), values.dtype)
        filled[lacks] = np.array(self._flat_default(), values.dtype)
        filled[fits & ~lacks] = values.reshape(-1, self.num_values)
        return filled.reshape(shape)

    def encode(self, value: Any) -> Any:
        """Returns the values as a list."""
        return self._flat(value, what=NO_FIT) or empty_array_of(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {"type": "fixed", "shape": list(self.shape), "dtype": name_of_dtype(self.dtype)}

    def _flat_default(self) -> list[Any]:
        what = "a default value does not fit its feature"
        default = check_array(self.default_value, self.dtype, what=what)
        if not default.ndim:
            return default.reshape(-1).tolist() * self.num_values
        return self._flat(default.reshape(self.shape) if default.size == self.num_values else default, what=what)

    def _flat(self, value: Any, *, what: str) -> list[Any]:
        array = check_array(value, self.dtype, what=what)
        if array.shape != tuple(self.shape) and not array.size == self.num_values == 1:
            raise InvalidInputError(what, received=array.shape, allowed=f"shape {self.shape}")
        return array.reshape(-1).tolist()


@final
@dataclass(frozen=True)
class RawFeature(AbstractFeature):
    """An array that is stored as its own bytes in one bytes value: its elements in C order, little-endian.

    ``tf.io.decode_raw`` followed by a reshape reads the same. An image of 28 x 28 uint8 takes 784 bytes this way.

    Attributes:
        shape: the shape of the array for one record.
        dtype: the dtype of the array's elements: numbers or truth values of fixed size.
    """

    shape: Sequence[int]
    dtype: DTypeLike = np.uint8

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape, of="a raw feature"))
        dtype = check_dtype(self.dtype, name="a raw feature's dtype", kinds="biufc", allowed="a number of fixed size")
        object.__setattr__(self, "dtype", dtype)

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
        """The number of bytes of one record's value."""
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
        """Returns the array's bytes; bytes of the right length are returned as they are."""
        if isinstance(value, bytes):
            fits = len(value) == self.size_bytes
        else:
            value = self._array(value)
            if not value.size:  # its dtype may be NumPy's default for an empty list
                value = value.astype(np.dtype(self.dtype))
            fits = value.shape == tuple(self.shape) and np.can_cast(value.dtype, np.dtype(self.dtype), "safe")
        if not fits:
            received = f"{len(value)} bytes" if isinstance(value, bytes) else f"{value.dtype} of shape {value.shape}"
            raise InvalidInputError(
                NO_FIT,
                received=received,
                allowed=f"{np.dtype(self.dtype)} of shape {self.shape}",
            )
        if isinstance(value, bytes):
            return value
        return value.astype(np.dtype(self.dtype).newbyteorder("<"), copy=False).tobytes()

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {"type": "raw", "shape": list(self.shape), "dtype": str(self.dtype)}

    @staticmethod
    def _array(value: Any) -> np.ndarray:
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise InvalidInputError(NO_FIT, received=describe_received(value), allowed="an array without masked values")
        try:
            return np.asarray(value)
        except ValueError:
            raise InvalidInputError(NO_FIT, received=value, allowed="rows of one length") from None


@final
@dataclass(frozen=True)
class FixedLenSequenceFeature(AbstractListFeature):
    """Any number of steps in each record, each of the same shape: ``tf.io.FixedLenSequenceFeature``.

    Records are padded to the longest record of the batch. In an example, the values of all steps are one list; in a
    sequence example, each step is an entry of a feature list.

    Attributes:
        shape: the shape of one step; () for one value.
        dtype: the dtype of the values, as for `FixedLenFeature`.
        allow_missing: whether a record may lack the feature, which means no steps. Examples require True.
        default_value: the value to pad shorter records with; 0 or b"" by default.

    Raises:
        InvalidInputError: If the dtype is not of those kinds, a step has no value, or the default is not one value.
    """

    shape: Sequence[int]
    dtype: DTypeLike
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape, of="a step"))
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        if self.step_size < 1:
            raise InvalidInputError("the shape of a step", received=self.shape, allowed="one value or more")
        if self.default_value is not None:
            self._padding_value()

    @property
    def kind(self) -> str:
        """See the base class."""
        return kind_of(self.dtype)

    @property
    def num_values(self) -> None:
        """None: the number depends on the record's number of steps."""
        return

    @property
    def step_size(self) -> int:
        """The number of values of a step."""
        return int(np.prod(self.shape, dtype=np.int64))

    def assemble(self, column: Column) -> np.ndarray:
        """Returns an array of ``dtype`` (object for bytes) and shape (num_records, most steps, *shape)."""
        wrong = np.flatnonzero(column.counts % self.step_size != 0)
        if wrong.size and column.counts[wrong[0]] > 0:
            reason = f"{column.counts[wrong[0]]} values do not divide into steps of {self.step_size}"
            raise MisfitError(int(wrong[0]), reason=reason)
        return self._fill(counts_of(column) // self.step_size, values_of(column, np.dtype(self.dtype)))

    def assemble_lists(self, column: ListColumn) -> np.ndarray:
        """Returns an array of ``dtype`` (object for bytes) and shape (num_records, most steps, *shape)."""
        wrong = np.flatnonzero(column.entries.counts != self.step_size)
        if wrong.size:
            raise MisfitError(int(wrong[0]))
        return self._fill(column.num_entries, values_of(column.entries, np.dtype(self.dtype)))

    def encode(self, value: Any) -> Any:
        """Returns the values of all steps as an array of one dimension."""
        self.check_for_examples()
        array = check_array(value, self.dtype, what=NO_FIT)
        if not array.size:
            return empty_array_of(self.dtype)
        if array.shape[1:] != tuple(self.shape) or not array.ndim:
            raise InvalidInputError(NO_FIT, received=array.shape, allowed=f"steps of shape {self.shape}")
        return array.reshape(-1)

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        default = self.default_value
        if default is not None:
            default = self._padding_value()
            default = default.hex() if isinstance(default, bytes) else default.item()
        return {
            "type": "fixed_sequence",
            "step_shape": list(self.shape),
            "dtype": name_of_dtype(self.dtype),
            "allow_missing": self.allow_missing,
            "default_value": default,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FixedLenSequenceFeature:
        """Reads the description of a manifest; see `feature_from_json` for errors."""
        default, dtype = document["default_value"], dtype_of(document["dtype"])
        if default is not None:
            default = bytes.fromhex(default) if kind_of(dtype) == "bytes_list" else dtype.type(default).item()
        return cls(document["step_shape"], dtype, bool(document["allow_missing"]), default)

    def check_for_examples(self) -> None:
        """Checks that the feature can be used in examples, which have a single list for a feature.

        Raises:
            InvalidInputError: If ``allow_missing`` is False.
        """
        if not self.allow_missing:
            raise InvalidInputError(
                "FixedLenSequenceFeature in a tf.train.Example",
                received="allow_missing=False",
                allowed="allow_missing=True: no values and no feature are the same there",
            )

    def _fill(self, num_steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        most = int(num_steps.max(initial=0))
        shape = (len(num_steps), most, *self.shape)
        if (num_steps == most).all():
            return values.reshape(shape)
        filled = np.full(len(num_steps) * most * self.step_size, self._padding_value(), self.dtype)
        starts = np.arange(len(num_steps)) * (most * self.step_size)
        filled[runs_of(starts, num_steps * self.step_size)] = values
        return filled.reshape(shape)

    def _padding_value(self) -> Any:
        if self.default_value is None:
            return b"" if self.kind == "bytes_list" else 0
        what = "the padding value of a sequence"
        default = check_array(self.default_value, self.dtype, what=what)
        if default.size != 1:
            raise InvalidInputError(what, received=self.default_value, allowed="one value")
        return default.reshape(-1)[0]


@final
@dataclass(frozen=True)
class SparseFeature(AbstractVaryingFeature):
    """Values with their indices, from several features of a record: ``tf.io.SparseFeature``.

    Attributes:
        index_key: the name of the records' feature with the index of each value, int64; several names for several
            dimensions.
        value_key: the name of the records' feature with the values, as many as there are indices.
        dtype: the dtype of the values, as for `FixedLenFeature`.
        size: the size of the dimension; several sizes if ``index_key`` has several names. Indices must be below it, as
            in TensorFlow's documentation; here, that is checked.
        already_sorted: whether each record's values are sorted by their indices; if so, they are not sorted again.

    Raises:
        InvalidInputError: If the numbers of names and sizes differ, or an argument is of another type.
    """

    index_key: str | Sequence[str]
    value_key: str
    dtype: DTypeLike
    size: int | Sequence[int]
    already_sorted: bool = False

    def __post_init__(self) -> None:
        is_one = not isinstance(self.index_key, list | tuple)
        given_keys: Sequence[Any] = (self.index_key,) if is_one else tuple(self.index_key)
        given_sizes: Sequence[Any] = tuple(self.size) if isinstance(self.size, list | tuple) else (self.size,)
        if is_one == isinstance(self.size, list | tuple) or len(given_keys) != len(given_sizes) or not given_keys:
            raise InvalidInputError(
                "a sparse feature's index_key and size",
                received=f"index_key={self.index_key!r}, size={self.size!r}",
                allowed="a name and a size, or as many names as sizes",
            )
        keys = tuple(check_name(key, of="a sparse feature's indices, index_key") for key in given_keys)
        sizes = tuple(check_int(size, name="a sparse feature's size", minimum=1) for size in given_sizes)
        check_name(self.value_key, of="a sparse feature's values, value_key")
        object.__setattr__(self, "index_key", keys[0] if is_one else keys)
        object.__setattr__(self, "size", sizes[0] if is_one else sizes)
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        object.__setattr__(self, "list_key", self.value_key)
        object.__setattr__(self, "index_keys", keys)

    def assemble(self, column: Column) -> SparseArray:
        """Returns the values with their indices: (record, index in each dimension)."""
        counts = counts_of(column)
        sizes = [self.size] if isinstance(self.size, int) else list(self.size)
        records = np.repeat(np.arange(len(counts)), counts)
        columns = [
            self._check_indices(column.index_columns[key], key, counts, size)
            for key, size in zip(self.index_keys, sizes, strict=True)
        ]
        indices = np.stack([records, *columns], axis=1)
        values = values_of(column, np.dtype(self.dtype))
        if not self.already_sorted:
            order = np.lexsort(indices.T[::-1])
            indices, values = indices[order], values[order]
        return SparseArray(indices=indices, values=values, dense_shape=np.array([len(counts), *sizes], np.int64))

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "type": "sparse",
            "index_key": self.index_key if isinstance(self.index_key, str) else list(self.index_key),
            "value_key": self.value_key,
            "dtype": name_of_dtype(self.dtype),
            "size": self.size if isinstance(self.size, int) else list(self.size),
            "already_sorted": self.already_sorted,
        }

    @staticmethod
    def _check_indices(indices: Column, key: str, counts: np.ndarray, size: int) -> np.ndarray:
        wrong = np.flatnonzero(indices.counts != counts)
        if wrong.size:
            number = int(wrong[0])
            has_kind = indices.counts[number] >= 0
            reason = f"{indices.counts[number]} indices for {counts[number]} values" if has_kind else None
            raise MisfitError(number, reason=reason, index_key=key)
        outside = (indices.values < 0) | (indices.values >= size)
        if outside.any():
            number = int(np.repeat(np.arange(len(counts)), counts)[np.argmax(outside)])
            reason = f"index {indices.values[np.argmax(outside)]} in a dimension of size {size}"
            raise MisfitError(number, reason=reason, index_key=key)
        return indices.values


@final
@dataclass(frozen=True)
class VarLenFeature(AbstractVaryingFeature, AbstractListFeature):
    """Any number of values in each record, also none, as ``tf.io.VarLenFeature``.

    Attributes:
        dtype: the dtype of the values, as for `FixedLenFeature`.
    """

    dtype: DTypeLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_of(self.dtype))

    def assemble(self, column: Column) -> SparseArray:
        """Returns the values with their indices: (record, position in the record)."""
        counts = counts_of(column)
        positions = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return SparseArray(
            indices=np.stack([np.repeat(np.arange(len(counts)), counts), positions], axis=1),
            values=values_of(column, np.dtype(self.dtype)),
            dense_shape=np.array([len(counts), counts.max(initial=0)], np.int64),
        )

    def assemble_lists(self, column: ListColumn) -> SparseArray:
        """Returns the values with their indices: (record, entry, position in the entry)."""
        counts, num_entries = counts_of(column.entries), column.num_entries
        steps = np.arange(len(counts)) - np.repeat(np.cumsum(num_entries) - num_entries, num_entries)
        records = np.repeat(np.arange(len(num_entries)), num_entries)
        positions = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return SparseArray(
            indices=np.stack([np.repeat(records, counts), np.repeat(steps, counts), positions], axis=1),
            values=values_of(column.entries, np.dtype(self.dtype)),
            dense_shape=np.array([len(num_entries), num_entries.max(initial=0), counts.max(initial=0)], np.int64),
        )

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        return {"type": "var_len", "dtype": name_of_dtype(self.dtype)}


_FROM_JSON: Final[Mapping[str, Callable[[Mapping[str, Any]], AbstractFeature]]] = {
    "fixed": lambda of: FixedLenFeature(of["shape"], of["dtype"]),
    "fixed_sequence": FixedLenSequenceFeature.from_json,
    "raw": lambda of: RawFeature(of["shape"], of["dtype"]),
    "var_len": lambda of: VarLenFeature(of["dtype"]),
    "sparse": lambda of: SparseFeature(
        of["index_key"], of["value_key"], of["dtype"], of["size"], bool(of["already_sorted"])
    ),
    "ragged": RaggedFeature.from_json,
}


def feature_from_json(document: Mapping[str, Any]) -> AbstractFeature:
    """Reads a feature's description from a manifest.

    Raises:
        CorruptDataError: If the document is not such a description.
    """
    try:
        return _FROM_JSON[document["type"]](document)
    except (AttributeError, KeyError, TypeError, ValueError, InvalidInputError):
        raise CorruptDataError(
            "a feature's description is not usable",
            received=document,
            allowed=f'{{"type": one of {", ".join(_FROM_JSON)}, "dtype": "...", and what the type takes}}',
        ) from None
