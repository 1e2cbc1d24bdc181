"""What the features of a record are, and how a batch of records becomes arrays.

A record's features are described by name. `FixedLenFeature` is what TensorFlow's parsing calls so; `RawFeature` is for
an array kept as its own bytes, such as an image of uint8. Parsing is one pass over the records: each is decoded once,
each feature appends its values to one list, and each list becomes one array at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from google.protobuf import message
from numpy.typing import DTypeLike

from lockstep.data.example import TYPE_OF_KIND, Example
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, closest


class AbstractFeature(ABC):
    """One feature of a record: how it is encoded, and how its values of many records become an array."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The list that holds it: ``bytes_list``, ``float_list`` or ``int64_list``."""

    @property
    @abstractmethod
    def default_values(self) -> Sequence[Any] | None:
        """What a record without the feature has; None where each record needs the feature."""

    @property
    @abstractmethod
    def num_values(self) -> int:
        """How many values a record has."""

    @abstractmethod
    def assemble(self, values: list[Any], *, num_records: int) -> np.ndarray:
        """Makes the array of a batch, of which the caller may write the elements.

        Args:
            values: ``num_records * num_values`` values, record after record.
            num_records: how many records they are of.

        Raises:
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
        if self.dtype in (bytes, str, "bytes", "string"):
            object.__setattr__(self, "dtype", np.dtype(object))
        else:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if np.dtype(self.dtype).kind not in "biufO":
            raise InvalidInputError("a feature's dtype", received=str(self.dtype), allowed="int64, float32, bytes")
        if self.default_value is not None:
            self._flat_default()

    @property
    def kind(self) -> str:
        """See the base class."""
        kind = np.dtype(self.dtype).kind
        return "bytes_list" if kind == "O" else "float_list" if kind == "f" else "int64_list"

    @property
    def num_values(self) -> int:
        """See the base class."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def default_values(self) -> Sequence[Any] | None:
        """See the base class."""
        return None if self.default_value is None else self._flat_default()

    def assemble(self, values: list[Any], *, num_records: int) -> np.ndarray:
        """Returns an array of ``dtype`` (object for bytes) and shape (num_records, *shape)."""
        shape = (num_records, *self.shape)
        if self.kind == "bytes_list":
            array = np.empty(len(values), object)
            array[:] = values
            return array.reshape(shape)
        return np.array(values, TYPE_OF_KIND[self.kind]).astype(self.dtype, copy=False).reshape(shape)

    def encode(self, value: Any) -> Any:
        """Returns the values as a list."""
        return self._flat(value) or np.empty(0, np.float32 if self.kind == "float_list" else np.int64)

    def to_json(self) -> dict[str, Any]:
        """See the base class."""
        name = "bytes" if self.kind == "bytes_list" else str(self.dtype)
        return {"type": "fixed", "shape": list(self.shape), "dtype": name}

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
    def default_values(self) -> Sequence[Any] | None:
        """See the base class."""
        return None

    @property
    def size_bytes(self) -> int:
        """How long the bytes of one record are."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def assemble(self, values: list[Any], *, num_records: int) -> np.ndarray:
        """Returns an array of ``dtype`` and shape (num_records, *shape)."""
        joined = bytearray().join(values)
        wanted = self.size_bytes
        for number, value in enumerate(values):
            if len(value) != wanted:
                raise InvalidInputError(
                    f"the bytes of record {number} of the batch do not fit the feature",
                    received=f"{len(value)} bytes",
                    allowed=f"{wanted} bytes: {np.dtype(self.dtype)} of shape {self.shape}",
                )
        stored = np.dtype(self.dtype).newbyteorder("<")
        return np.frombuffer(joined, stored).astype(self.dtype, copy=False).reshape(num_records, *self.shape)

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


_FROM_JSON: Final = {"fixed": FixedLenFeature, "raw": RawFeature}


def feature_from_json(document: Mapping[str, Any]) -> AbstractFeature:
    """Reads a feature's description from a manifest.

    Raises:
        CorruptDataError: it is not such a description.
    """
    try:
        return _FROM_JSON[document["type"]](document["shape"], document["dtype"])
    except (KeyError, TypeError, ValueError, InvalidInputError):
        raise CorruptDataError(
            "a feature's description is not usable",
            received=document,
            allowed='{"type": "fixed" or "raw", "shape": [...], "dtype": "..."}',
        ) from None


def parse_batch(records: Sequence[bytes], spec: Mapping[str, AbstractFeature]) -> dict[str, np.ndarray]:
    """Decodes records into arrays, one for each feature of the specification; other features are left out.

    Args:
        records: the bytes of ``tf.train.Example`` messages.
        spec: the features wanted, by name.

    Returns:
        By name, an array of the feature's type whose first dimension is the records. A caller may write to it.

    Raises:
        CorruptDataError: a record is no such message.
        InvalidInputError: a record lacks a feature, or has another kind or number of values than the specification.
    """
    collected = [
        (name, feature, feature.kind, feature.num_values, feature.default_values, []) for name, feature in spec.items()
    ]
    decode = Example.FromString
    for number, data in enumerate(records):
        try:
            features = decode(data).features.feature
        except message.DecodeError:
            raise CorruptDataError(f"record {number} of the batch is not a tf.train.Example") from None
        for name, _, kind, num_values, defaults, values in collected:
            # Reading a map's missing key makes it, and reading another kind's list gives an empty one: both then have
            # the wrong number of values, which is checked anyway.
            found = getattr(features[name], kind).value
            if len(found) == num_values:
                values += found
            elif defaults is not None and not len(found) and features[name].WhichOneof("kind") is None:
                values += defaults
            else:
                raise _mismatch(number, data, name, kind, num_values)
    arrays: dict[str, np.ndarray] = {}
    for name, feature, *_, values in collected:
        try:
            arrays[name] = feature.assemble(values, num_records=len(records))
        except InvalidInputError as error:
            raise InvalidInputError(
                f"feature {name!r}: {error.what}", received=error.received, allowed=error.allowed
            ) from None
    return arrays


def _mismatch(number: int, data: bytes, name: str, kind: str, num_values: int) -> LockstepError:
    features = Example.FromString(data).features.feature
    if name not in features:
        return InvalidInputError(
            f"record {number} of the batch lacks the feature {name!r}",
            allowed=sorted(features) or "(the record has no feature)",
            action=closest(name, features),
        )
    found = features[name].WhichOneof("kind")
    count = len(getattr(features[name], found).value) if found else 0
    return InvalidInputError(
        f"feature {name!r} of record {number} of the batch does not fit the specification",
        received=f"{count} values of {TYPE_OF_KIND.get(found or '', 'no kind')}",
        allowed=f"{num_values} values of {TYPE_OF_KIND[kind]}",
    )
