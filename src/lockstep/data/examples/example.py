"""Encodes and decodes ``tf.train.Example`` without TensorFlow: named lists of bytes, 32-bit floats or 64-bit integers.

The message classes are built in code, in a descriptor pool of their own, so that TensorFlow can be imported into the
same process. The wire format is TensorFlow's: ``Example.features(1).feature(1)`` is a map from a name to one of
``bytes_list(1)``, ``float_list(2, packed)`` and ``int64_list(3, packed)``. A ``SequenceExample`` has such a map in its
``context(1)``, and in ``feature_lists(2).feature_list(1)`` a map from a name to a list of features: ``feature(1)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from lockstep.data.arguments import check_name, describe_received
from lockstep.data.examples.arguments import check_range, is_all_whole
from lockstep.data.examples.columns import TYPE_OF_KIND
from lockstep.errors import CorruptDataError, InvalidInputError

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_INT64: Final = np.iinfo(np.int64)


def _build_classes() -> tuple[Any, Any]:
    package = "tensorflow"
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=package, syntax="proto3")

    def add(owner: Any, name: str, number: int, kind: int, *, repeated: bool = False, of: str | None = None) -> Any:
        label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
        type_name = f".{package}.{of}" if of else None
        return owner.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)

    for name, kind in (
        ("BytesList", _FIELD.TYPE_BYTES),
        ("FloatList", _FIELD.TYPE_FLOAT),
        ("Int64List", _FIELD.TYPE_INT64),
    ):
        add(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), start=1
    ):
        add(feature, name, number, _FIELD.TYPE_MESSAGE, of=of).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, _FIELD.TYPE_STRING)
    add(entry, "value", 2, _FIELD.TYPE_MESSAGE, of="Feature")
    add(features, "feature", 1, _FIELD.TYPE_MESSAGE, repeated=True, of="Features.FeatureEntry")
    add(file.message_type.add(name="Example"), "features", 1, _FIELD.TYPE_MESSAGE, of="Features")
    add(file.message_type.add(name="FeatureList"), "feature", 1, _FIELD.TYPE_MESSAGE, repeated=True, of="Feature")
    lists = file.message_type.add(name="FeatureLists")
    entry = lists.nested_type.add(name="FeatureListEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, _FIELD.TYPE_STRING)
    add(entry, "value", 2, _FIELD.TYPE_MESSAGE, of="FeatureList")
    add(lists, "feature_list", 1, _FIELD.TYPE_MESSAGE, repeated=True, of="FeatureLists.FeatureListEntry")
    sequence = file.message_type.add(name="SequenceExample")
    add(sequence, "context", 1, _FIELD.TYPE_MESSAGE, of="Features")
    add(sequence, "feature_lists", 2, _FIELD.TYPE_MESSAGE, of="FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    example, sequence_example = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in ("Example", "SequenceExample")
    )
    return example, sequence_example


Example, SequenceExample = _build_classes()
"""The message classes of ``tf.train.Example`` and ``tf.train.SequenceExample``."""


def encode_example(values: Mapping[str, Any]) -> bytes:
    """Encodes named values as a ``tf.train.Example``.

    Args:
        values: the values by name: a value, a sequence of values, or an array of any shape, which is flattened. Text
            (as UTF-8) and bytes are stored as bytes, integers and truth values as int64, and floats as float32, to
            which they are rounded. An empty value without a dtype (``[]``, ``np.array([])``) is stored without a kind,
            and can be read as any. To keep an array's dtype, give its bytes (``array.tobytes()``), and read them with
            `lockstep.data.RawFeature`.

    Returns:
        The bytes of the message, always the same for the same values.

    Raises:
        InvalidInputError: If a value is of another type, mixes types, is masked, or is out of the range of int64 or
            float32; or if a name is not text.
    """
    example = Example()
    for name, value in named_values(values):
        set_feature(example.features.feature[name], name, value)
    return example.SerializeToString(deterministic=True)


def decode_example(data: bytes) -> dict[str, np.ndarray | list[bytes]]:
    """Decodes a ``tf.train.Example`` without a specification of its features.

    Args:
        data: the bytes of one ``tf.train.Example``.

    Returns:
        The values by name, sorted by name: a list of bytes, or an array of float32 or int64 of shape (num_values,). A
        feature without a kind is an empty list.

    Raises:
        CorruptDataError: If the bytes are not such a message.
        InvalidInputError: If ``data`` is not bytes.
    """
    example = parse_message(Example, data)
    return {name: feature_values(feature) for name, feature in sorted(example.features.feature.items())}


def parse_message(message_class: Any, data: bytes) -> Any:
    """Decodes a message of a class from its bytes.

    Raises:
        CorruptDataError: If the bytes are not such a message.
        InvalidInputError: If ``data`` is not bytes.
    """
    name = f"tf.train.{message_class.DESCRIPTOR.name}"
    try:
        return message_class.FromString(data)
    except message.DecodeError:
        raise CorruptDataError(f"the record is not a {name}", received=data[:40]) from None
    except TypeError:
        raise InvalidInputError(
            "a record to decode", received=describe_received(data), allowed=f"the bytes of one {name}"
        ) from None


def names_of_example(data: bytes) -> list[str]:
    """Returns the sorted names of an example's features; none if the bytes are not an example."""
    try:
        return sorted(Example.FromString(data).features.feature)
    except message.DecodeError:
        return []


def named_values(values: Any) -> Iterable[tuple[str, Any]]:
    """Checks the argument of `encode_example`, and returns its names with their values.

    Raises:
        InvalidInputError: If the argument is not a mapping, or a name is not text.
    """
    if not isinstance(values, Mapping):
        raise InvalidInputError(
            "the values to encode", received=describe_received(values), allowed="values by name, as a mapping"
        )
    for name in values:
        check_name(name, of="a feature")
    return values.items()


def set_feature(feature: Any, name: str, value: Any) -> None:
    """Writes a value into a feature's message, as `encode_example` does.

    Raises:
        InvalidInputError: If no list can hold a value of this type.
    """
    _fill(feature, *_classify(name, value))


def set_features(entries: Any, name: str, values: Iterable[Any]) -> None:
    """Writes values into a feature list's message, all of one kind: integers become floats if others are floats.

    Raises:
        InvalidInputError: If no list can hold a value of its type, or the values are of several types.
    """
    classified = [_classify(name, value) for value in values]
    kinds = {kind for kind, _ in classified if kind is not None}
    if len(kinds) > 1 and "bytes_list" in kinds:
        raise InvalidInputError(
            f"feature list {name!r} cannot be encoded",
            received=" and ".join(sorted(TYPE_OF_KIND[kind] for kind in kinds)),
            allowed="values of one type in all steps",
        )
    for kind, items in classified:
        _fill(entries.feature.add(), "float_list" if kind is not None and len(kinds) > 1 else kind, items)


def feature_values(feature: Any) -> np.ndarray | list[bytes]:
    """Returns the values of a feature's message, as `decode_example` does."""
    kind = feature.WhichOneof("kind")
    if kind is None or kind == "bytes_list":
        return list(feature.bytes_list.value)
    return np.array(getattr(feature, kind).value, TYPE_OF_KIND[kind])


def _fill(feature: Any, kind: str | None, items: Sequence[Any]) -> None:
    if kind is not None:
        getattr(feature, kind).value.extend(items)
        getattr(feature, kind).SetInParent()  # an empty list has a kind, too


def _classify(name: str, value: Any) -> tuple[str | None, Sequence[Any]]:
    """Returns the kind of list that holds a value, and the list's items; the kind is None if nothing determines it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes_list", [bytes(value)]
    if isinstance(value, str):
        return "bytes_list", _encoded(name, [value])
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise _unusable(name, value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return _classify_array(name, np.asarray(value))
    items: Sequence[Any] = value if isinstance(value, Sequence) else [value]
    if isinstance(value, np.ndarray):
        items = value.reshape(-1).tolist()
    if not items:
        return None, ()
    if all(isinstance(item, bytes | str) for item in items):
        return "bytes_list", _encoded(name, items)
    if is_all_whole(items):  # NumPy would convert integers to floats if no single dtype can hold them
        whole = [int(item) for item in items]
        if min(whole) < _INT64.min or max(whole) > _INT64.max:
            _in_range(name, np.array(whole, object), np.int64)
        return "int64_list", whole
    if all(isinstance(item, int | float | np.number | np.bool_) for item in items):
        array = np.asarray(items)
        try:
            return _classify_array(name, array.astype(np.float64) if array.dtype == object else array)
        except OverflowError:  # an integer beyond the range of floats
            pass
    raise _unusable(name, value)


def _classify_array(name: str, array: np.ndarray) -> tuple[str | None, Sequence[Any]]:
    flat = array.reshape(-1)
    if not flat.size and array.dtype == np.float64:
        return None, ()  # float64 is NumPy's default for an empty list
    if array.dtype.kind in "biu":
        return "int64_list", _in_range(name, flat, np.int64).tolist()
    if array.dtype.kind == "f":
        return "float_list", _in_range(name, flat, np.float32).tolist()
    if array.dtype.kind in "SU":
        return "bytes_list", _encoded(name, flat.tolist())
    raise _unusable(name, array)


def _in_range(name: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    try:
        check_range(values, np.dtype(dtype))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"feature {name!r} cannot be encoded: {error.what}", received=error.received, allowed=error.allowed
        ) from None
    return values.astype(dtype, copy=False)


def _encoded(name: str, items: Sequence[bytes | str]) -> list[bytes]:
    try:
        return [item.encode() if isinstance(item, str) else item for item in items]
    except UnicodeEncodeError:
        raise _unusable(name, items) from None


def _unusable(name: str, value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"feature {name!r} cannot be encoded",
        received=describe_received(value),
        allowed="bytes, text, integers, floats, or a list or array of one of these, without masked values",
    )
