"""The ``tf.train.Example`` codec, without TensorFlow: named lists of bytes, 32-bit floats or 64-bit integers.

The messages are built from their description in code, in a pool of their own, so that TensorFlow may be imported into
the same process. On the wire they are TensorFlow's: ``Example.features(1).feature(1)`` is a map from a name to one
of ``bytes_list(1)``, ``float_list(2, packed)`` and ``int64_list(3, packed)``. A ``SequenceExample`` has such a map in
its ``context(1)``, and in ``feature_lists(2).feature_list(1)`` a map from a name to a list of features: ``feature(1)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from lockstep.data.arguments import name_given, shown
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
    """Encodes named values.

    Args:
        values: for each name a value, a sequence of values, or an array of any shape, which is flattened. Text
            (as UTF-8) and bytes are kept as bytes, integers and truth values as int64, floats as float32, to which
            they are rounded. What is empty and says no type (``[]``, ``np.array([])``) is kept without one, and read
            by a feature of any. To keep an array's own type, give its bytes (``array.tobytes()``) and read it with
            `lockstep.data.RawFeature`.

    Returns:
        The message, the same bytes for the same values.

    Raises:
        InvalidInputError: a value is of another type, or of several, is masked, or is beyond int64 or float32; or a
            name is no text.
    """
    example = Example()
    for name, value in named_values(values):
        set_feature(example.features.feature[name], name, value)
    return example.SerializeToString(deterministic=True)


def decode_example(data: bytes) -> dict[str, np.ndarray | list[bytes]]:
    """Decodes a message of which nothing is known.

    Args:
        data: the bytes of one ``tf.train.Example``.

    Returns:
        By name, sorted: a list of bytes, or an array of float32 or int64 of shape (num_values,). A feature that is
        there without a kind is an empty list.

    Raises:
        CorruptDataError: the bytes are no such message.
        InvalidInputError: what was given is not bytes.
    """
    example = parse_message(Example, data)
    return {name: feature_values(feature) for name, feature in sorted(example.features.feature.items())}


def parse_message(message_class: Any, data: bytes) -> Any:
    """Returns a message from its bytes.

    Raises:
        CorruptDataError: the bytes are no such message.
        InvalidInputError: what was given is not bytes.
    """
    name = f"tf.train.{message_class.DESCRIPTOR.name}"
    try:
        return message_class.FromString(data)
    except message.DecodeError:
        raise CorruptDataError(f"the record is not a {name}", received=data[:40]) from None
    except TypeError:
        raise InvalidInputError(
            "a record to decode", received=shown(data), allowed=f"the bytes of one {name}"
        ) from None


def names_of_example(data: bytes) -> list[str]:
    """Returns the names of the features of what may be an example, sorted; none of anything else."""
    try:
        return sorted(Example.FromString(data).features.feature)
    except message.DecodeError:
        return []


def named_values(values: Any) -> Iterable[tuple[str, Any]]:
    """Returns names with their values, as `encode_example` takes them.

    Raises:
        InvalidInputError: they are no mapping, or a name is no text.
    """
    if not isinstance(values, Mapping):
        raise InvalidInputError("what is to be encoded", received=shown(values), allowed="values by name, as a mapping")
    for name in values:
        name_given(name, of="a feature")
    return values.items()


def set_feature(feature: Any, name: str, value: Any) -> None:
    """Puts a value into a message that is a feature, as `encode_example` does.

    Raises:
        InvalidInputError: it is of a type that no list holds.
    """
    _fill(feature, *_classify(name, value))


def set_features(entries: Any, name: str, values: Iterable[Any]) -> None:
    """Puts values into a message that is a feature list: all of one kind, floats where only some are integers.

    Raises:
        InvalidInputError: one is of a type that no list holds, or they are of several.
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
    """Returns the values of a message that is a feature, as `decode_example` does."""
    kind = feature.WhichOneof("kind")
    if kind is None or kind == "bytes_list":
        return list(feature.bytes_list.value)
    return np.array(getattr(feature, kind).value, TYPE_OF_KIND[kind])


def _fill(feature: Any, kind: str | None, items: Sequence[Any]) -> None:
    if kind is not None:
        getattr(feature, kind).value.extend(items)
        getattr(feature, kind).SetInParent()  # a list without items says its kind, too


def _classify(name: str, value: Any) -> tuple[str | None, Sequence[Any]]:
    """Returns the kind of list that holds a value, and the list's items; None where nothing says the kind."""
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
    if is_all_whole(items):  # NumPy would make floats of some that no one type of its own holds
        whole = [int(item) for item in items]
        if min(whole) < _INT64.min or max(whole) > _INT64.max:
            _in_range(name, np.array(whole, object), np.int64)
        return "int64_list", whole
    if all(isinstance(item, int | float | np.number | np.bool_) for item in items):
        array = np.asarray(items)
        try:
            return _classify_array(name, array.astype(np.float64) if array.dtype == object else array)
        except OverflowError:  # an integer beyond all floats
            pass
    raise _unusable(name, value)


def _classify_array(name: str, array: np.ndarray) -> tuple[str | None, Sequence[Any]]:
    flat = array.reshape(-1)
    if not flat.size and array.dtype == np.float64:
        return None, ()  # NumPy's own choice for what has no type
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
        received=shown(value),
        allowed="bytes, text, integers, floats, or a list or array of one of these, without masked values",
    )
