"""Reads the tensors of a request in the Open Inference Protocol, and checks them against a model's inputs.

The checks are those of JSON instances. Values of another number type than the input's are converted if all of them can
be represented. A binary tensor of the input's own type is not copied.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.serving.images import ImageReader
from lockstep.serving.instances import InputSpec, fits, kinds_for, read_bytes, spell, why_out_of_range
from lockstep.tensors.datatypes import DATATYPES

BYTES: Final = "BYTES"
"""The protocol's datatype of elements of any number of bytes: the image files of an input that takes pixels."""
_LENGTH: Final = struct.Struct("<I")


def read_shape(value: object, *, where: str) -> tuple[int, ...]:
    """Returns the ``shape`` of a tensor, whose first number is the number of instances, 1 or more.

    Raises:
        InvalidInputError: it is not a list of such numbers.
    """
    is_list = isinstance(value, list) and value and all(type(size) is int and size >= 0 for size in value)
    if not is_list or not cast("list[int]", value)[0]:
        raise InvalidInputError(
            f"{where}: shape", received=value, allowed="a list of numbers; the first is the number of instances"
        )
    return tuple(cast("list[int]", value))


def read_binary(
    data: memoryview, *, datatype: object, shape: tuple[int, ...], spec: InputSpec, images: ImageReader
) -> np.ndarray:
    """Reads a tensor from its binary data.

    Args:
        data: the data, exactly that of this tensor.
        datatype: the protocol's name of the type of its elements.
        shape: the shape of the tensor, with the number of instances.
        spec: the input that the tensor is for.
        images: the reader of the request's images.

    Returns:
        An array of shape ``[n, *spec.shape]`` and of the input's dtype. Without a conversion, it is `data` itself.

    Raises:
        InvalidInputError: the tensor does not fit the input, or the data does not fit the shape.
        BodyTooLargeError: the request's decoded images are too large.
    """
    where = f"input {spec.name}"
    if datatype == BYTES:
        return _read_elements(data, shape=shape, spec=spec, images=images)
    dtype = _dtype_of(datatype, where=where)
    _check_shape(shape, spec=spec, where=where)
    num_bytes = math.prod(shape) * dtype.itemsize
    if len(data) != num_bytes:
        raise InvalidInputError(
            f"{where}: binary_data_size",
            received=len(data),
            allowed=f"{num_bytes}, the size of {datatype} of shape {list(shape)}",
        )
    if dtype.kind == "b":
        flags = np.frombuffer(data, np.uint8)
        if flags.size and flags.max() > 1:
            raise InvalidInputError(f"{where}: a byte of BOOL", received=int(flags.max()), allowed="0 or 1")
    return _convert(np.frombuffer(data, dtype).reshape(shape), spec=spec, where=where)


def read_json(data: object, *, datatype: object, shape: tuple[int, ...], spec: InputSpec) -> np.ndarray:
    """Reads a tensor from the ``data`` of its JSON: a list of its values in row-major order, nested or not.

    Args:
        data: the list.
        datatype: the protocol's name of the type of its elements.
        shape: the shape of the tensor, with the number of instances.
        spec: the input that the tensor is for.

    Returns:
        An array of shape ``[n, *spec.shape]`` and of the input's dtype.

    Raises:
        InvalidInputError: the tensor does not fit the input, or the list does not fit the shape.
    """
    where = f"input {spec.name}"
    if datatype == BYTES:
        raise InvalidInputError(f"{where}: BYTES as JSON", allowed="binary data, with binary_data_size")
    dtype = _dtype_of(datatype, where=where)
    _check_shape(shape, spec=spec, where=where)
    try:
        array = _read_numbers(data, dtype) if isinstance(data, list) else None
    except (ValueError, RecursionError):
        array = None
    if array is None or array.size != math.prod(shape):
        received = None if array is None else f"{array.size} values"
        raise InvalidInputError(f"{where}: data", received=received, allowed=f"a list of {math.prod(shape)} values")
    if array.size:
        array = _convert(array, spec=InputSpec(name=spec.name, shape=spec.shape, dtype=dtype.name), where=where)
    return _convert(array.astype(dtype, copy=False).reshape(shape), spec=spec, where=where)


def _read_numbers(data: list[object], dtype: np.dtype[Any]) -> np.ndarray:
    array = np.asarray(data)
    if array.dtype.kind == "f" and dtype.kind in "iu":
        # NumPy reads integers as floats, which round them, if some of them are only in uint64, and others in int64.
        exact = np.asarray(data, object)
        if all(type(value) is int for value in exact.flat):
            with suppress(OverflowError):  # of a number that is in neither, which is refused afterwards
                return exact.astype(dtype)
    return array


def _dtype_of(datatype: object, *, where: str) -> np.dtype[Any]:
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise InvalidInputError(f"{where}: datatype", received=datatype, allowed=(*DATATYPES, BYTES))
    return dtype


def _check_shape(shape: tuple[int, ...], *, spec: InputSpec, where: str) -> None:
    if not fits(shape[1:], spec.shape):
        raise InvalidInputError(f"{where}: shape", received=list(shape), allowed=spell((None, *spec.shape)))


def _convert(array: np.ndarray, *, spec: InputSpec, where: str) -> np.ndarray:
    """Returns an array in the dtype of an input; the array itself if it has that."""
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted:
        return array
    if array.dtype.kind not in kinds_for(wanted):
        raise InvalidInputError(
            f"{where}: its values are not {'true or false' if wanted.kind == 'b' else 'numbers'}",
            received=_spell_dtype(array.dtype),
            allowed=_spell_dtype(wanted),
        )
    # Unlike JSON, binary data has infinity and NaN, which all types of floats can represent.
    is_float = array.dtype.kind == wanted.kind == "f"
    checked = array[np.isfinite(array)] if is_float else array
    allowed = why_out_of_range(checked, wanted)
    if allowed is not None:
        received = f"{checked.min()} to {checked.max()}"
        raise InvalidInputError(f"{where}: a value does not fit {wanted}", received=received, allowed=allowed)
    return array.astype(wanted)


def _spell_dtype(dtype: np.dtype[Any]) -> str:
    names = [name for name, known in DATATYPES.items() if known == dtype]
    return names[0] if names else "text, or objects"


def _read_elements(data: memoryview, *, shape: tuple[int, ...], spec: InputSpec, images: ImageReader) -> np.ndarray:
    """Reads elements of BYTES, each of which is one instance."""
    where = f"input {spec.name}"
    if any(size != 1 for size in shape[1:]):
        raise InvalidInputError(f"{where}: shape of BYTES", received=list(shape), allowed="[any], or [any, 1]")
    values: list[np.ndarray] = []
    for index, element in enumerate(_split_elements(data, number=shape[0], where=where)):
        value = read_bytes(bytes(element), spec=spec, place=f"{where}[{index}]", images=images)
        if values and value.shape != values[0].shape:
            raise InvalidInputError(
                f"{where}[{index}]: its shape is not that of the first instance",
                received=list(value.shape),
                allowed=f"{list(values[0].shape)}, or send it in a separate request",
            )
        values.append(value)
    return np.stack(values)


def _split_elements(data: memoryview, *, number: int, where: str) -> Sequence[memoryview]:
    """Splits the data of a tensor of BYTES: each element is its length in 4 bytes, and its content."""
    elements: list[memoryview] = []
    rest = data
    while len(elements) < number and len(rest) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
        if end > len(rest):
            break
        elements.append(rest[_LENGTH.size : end])
        rest = rest[end:]
    if len(elements) < number or rest:
        raise InvalidInputError(
            f"{where}: the data does not consist of {number} elements",
            received=f"{len(elements)} of them, and {len(rest)} further bytes",
            allowed="for each element, its length in 4 bytes (little-endian), and its content",
        )
    return elements
