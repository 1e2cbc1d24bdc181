"""Converts between a prediction request's JSON and arrays: reads instances, and writes predictions.

The format is AI Platform Prediction's: ``{"instances": [...]}`` is answered by ``{"predictions": [...]}``. An instance
is the value of the model's input, or an object of values by input name. Bytes are written as ``{"b64": "..."}``. They
are raw values, or a JPEG or PNG file for an input that takes images. ``{"image_bytes": {"b64": "..."}}`` names the
input ``image``, or the only input. A prediction is the value of the model's output, or an object of values by output
name if the model has several outputs. JSON has no NaN and no infinity: in predictions, they are the strings ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``, as in the JSON form of Protocol Buffers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import orjson

from lockstep.data.images.formats import format_of
from lockstep.errors import InvalidInputError, closest
from lockstep.serving.images import ImageReader, image_file_error, is_image_file, num_channels_of

Arrays = dict[str, np.ndarray]
"""Arrays by input or output name. Their first dimension is the number of instances."""

B64: Final = "b64"
NUM_SHOWN: Final = 40
"""How many characters of invalid base64 an error shows: the whole text of an image would hide the rest."""
BYTES_SUFFIX: Final = "_bytes"


@final
@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """The specification of one input of a model.

    Attributes:
        name: the name of the input.
        shape: the shape of one instance, without the batch dimension; None for dimensions of any size.
        dtype: NumPy's name of the dtype of the input's values.
        takes_pixels: whether its values are pixels from 0 to 255, so that they can be sent as an image file.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    takes_pixels: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether every instance has the same shape."""
        return None not in self.shape

    def to_json(self) -> dict[str, object]:
        """Returns ``{"name", "shape", "dtype"}``. In the shape, null stands for any size."""
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}


@final
@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """The specification of one output of a model.

    Attributes:
        name: the name of the output.
        shape: the shape of one prediction, without the batch dimension; None for dimensions of any size.
        dtype: NumPy's name of the dtype of the output's values.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


def read_request(body: bytes) -> list[object]:
    """Parses the body of a request, and returns its instances.

    Raises:
        InvalidInputError: the body is not ``{"instances": [...]}`` with one instance or more.
    """
    instances, others = read_document(body)
    if others:
        raise InvalidInputError(f"unknown key {min(others)}", allowed='{"instances": [...]}')
    return instances


def read_document(body: bytes) -> tuple[list[object], dict[str, object]]:
    """Parses the body of a request, and returns its instances and its other keys.

    Raises:
        InvalidInputError: the body is not an object with one instance or more.
    """
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise InvalidInputError(f"the body is not JSON: {error}", allowed='{"instances": [...]}') from None
    if not isinstance(document, dict) or "instances" not in document:
        keys = sorted(map(str, document)) if isinstance(document, dict) else type(document).__name__
        raise InvalidInputError("the body has no instances", received=keys, allowed='{"instances": [...]}')
    others = cast("dict[str, object]", document)
    instances = others.pop("instances")
    if not others.get("parameters", True):  # Vertex AI's clients send it, empty by default
        del others["parameters"]
    if not isinstance(instances, list) or not instances:
        raise InvalidInputError("instances", received=instances, allowed="a list of one instance or more")
    return cast("list[object]", instances), others


def read_instances(instances: Sequence[object], *, specs: Sequence[InputSpec]) -> Arrays:
    """Converts instances to one array for each input.

    Args:
        instances: the request's instances, one or more.
        specs: the model's inputs.

    Returns:
        Arrays of shape ``[len(instances), *shape]`` by input name.

    Raises:
        InvalidInputError: an instance does not fit the model's inputs. The message says which one, what it is, and what
            is allowed.
    """
    whole = _read_whole(instances, specs[0]) if len(specs) == 1 else None
    if whole is not None:
        return {specs[0].name: whole}
    rows = [_by_name(instance, index, specs) for index, instance in enumerate(instances)]
    images = ImageReader()
    arrays: Arrays = {}
    for spec in specs:
        where = [f"instances[{index}]" + (f".{spec.name}" if len(specs) > 1 else "") for index in range(len(rows))]
        values = [_value(row[spec.name], spec, place, images) for row, place in zip(rows, where, strict=True)]
        for value, place in zip(values, where, strict=True):
            if value.shape != values[0].shape:
                raise InvalidInputError(
                    f"{place}: its shape is not that of the first instance",
                    received=list(value.shape),
                    allowed=f"{list(values[0].shape)}, or send it in a separate request",
                )
        arrays[spec.name] = np.stack(values)
    return arrays


def write_response(outputs: Arrays, *, names: Sequence[str]) -> bytes:
    """Returns the body of a response, ``{"predictions": [...]}``.

    Args:
        outputs: arrays of shape ``[num_instances, ...]`` by output name. Floats have at least 32 bits.
        names: the names of the outputs. If there is only one, its values are written without the name.
    """
    columns = [writable(outputs[name]) for name in names]
    if len(names) == 1:
        predictions: object = columns[0]
    else:
        predictions = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return orjson.dumps({"predictions": predictions}, option=orjson.OPT_SERIALIZE_NUMPY)


def writable(array: np.ndarray) -> np.ndarray | list[object]:
    """Returns an array in a form that orjson writes, with strings instead of NaN and infinity.

    Args:
        array: numbers with one dimension or more.
    """
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return np.ascontiguousarray(array)
    as_objects = array.astype(object)
    as_objects[np.isnan(array)] = "NaN"
    as_objects[np.isposinf(array)] = "Infinity"
    as_objects[np.isneginf(array)] = "-Infinity"
    return cast("list[object]", as_objects.tolist())


def plain(array: np.ndarray) -> np.ndarray:
    """Returns an array with floats of 32 bits instead of smaller ones, such as float16 and bfloat16."""
    is_float = array.dtype.kind in "fV"  # NumPy has no kind of its own for bfloat16
    return array.astype(np.float32) if is_float and array.dtype.itemsize < 4 else array


def plain_dtype(dtype: np.dtype[Any]) -> str:
    """Returns NumPy's name of the dtype that `plain` returns for an array of a dtype."""
    return "float32" if dtype.kind in "fV" and dtype.itemsize < 4 else dtype.name


def _read_whole(instances: Sequence[object], spec: InputSpec) -> np.ndarray | None:
    """Reads instances that are nested lists of numbers of one shape, in one pass.

    Returns:
        The array; None if the instances are anything else, or do not fit the input.
    """
    if not isinstance(instances[0], list | int | float):
        return None
    try:
        array = np.asarray(instances)
    except ValueError:
        return None
    if (
        array.dtype.kind not in kinds_for(np.dtype(spec.dtype))
        or not array.size
        or not fits(array.shape[1:], spec.shape)
    ):
        return None
    return cast_exactly(array, spec.dtype)


def cast_exactly(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """Returns numbers in the dtype of an input; None if it cannot represent one of them.

    Floats are rounded. Numbers that are too large for the dtype, and fractions for integers, cannot be represented.
    """
    wanted = np.dtype(dtype)
    return None if why_out_of_range(array, wanted) else array.astype(wanted)


def _by_name(instance: object, index: int, specs: Sequence[InputSpec]) -> Mapping[str, object]:
    names = [spec.name for spec in specs]
    is_object = isinstance(instance, dict) and set(instance) != {B64}
    if not is_object and len(specs) == 1:
        return {names[0]: instance}
    if not is_object:
        raise InvalidInputError(
            f"instances[{index}]", received=instance, allowed=f"an object with the inputs {', '.join(names)}"
        )
    found = _unsuffixed(cast("dict[str, object]", instance), names)
    for name in found:
        if name not in names:
            what = f"instances[{index}]: the model has no input {name}"
            raise InvalidInputError(what, allowed=names, action=closest(name, names))
    for name in names:
        if name not in found:
            raise InvalidInputError(f"instances[{index}]: input {name} is missing", received=sorted(found))
    return found


def _unsuffixed(instance: dict[str, object], names: Sequence[str]) -> dict[str, object]:
    """Returns an instance with the suffix "_bytes" removed from its keys, which AI Platform requires for bytes."""
    found: dict[str, object] = {}
    for key, value in instance.items():
        name = key
        if key not in names and key.endswith(BYTES_SUFFIX) and isinstance(value, dict) and set(value) == {B64}:
            name = names[0] if len(names) == 1 else key.removesuffix(BYTES_SUFFIX)
        is_free = name in names and name not in instance and name not in found
        found[name if is_free else key] = value
    return found


def _value(value: object, spec: InputSpec, place: str, images: ImageReader) -> np.ndarray:
    if isinstance(value, dict):
        return _bytes_value(cast("dict[str, object]", value), spec, place, images)
    try:
        array = np.asarray(value)
    except (ValueError, RecursionError):
        raise InvalidInputError(
            f"{place}: its lists have different lengths", allowed=f"numbers of shape {spell(spec.shape)}"
        ) from None
    wanted = np.dtype(spec.dtype)
    if array.size and array.dtype.kind not in kinds_for(wanted):
        raise InvalidInputError(
            f"{place}: it contains values that are not {'true or false' if wanted.kind == 'b' else 'numbers'}",
            received=value,
            allowed=f"{spec.dtype} of shape {spell(spec.shape)}",
        )
    if not fits(array.shape, spec.shape):
        raise InvalidInputError(f"{place}: shape", received=list(array.shape), allowed=spell(spec.shape))
    allowed = why_out_of_range(array, wanted)
    if allowed is not None:
        received = f"{array.min()} to {array.max()}"
        raise InvalidInputError(f"{place}: a value does not fit {wanted}", received=received, allowed=allowed)
    return array.astype(wanted)


def kinds_for(wanted: np.dtype[Any]) -> str:
    """Returns the kinds of values, as NumPy reads them from JSON, that an input of a dtype accepts."""
    return "b" if wanted.kind == "b" else "iuf"


def _bytes_value(value: dict[str, object], spec: InputSpec, place: str, images: ImageReader) -> np.ndarray:
    text = value.get(B64)
    if set(value) != {B64} or not isinstance(text, str):
        raise InvalidInputError(place, received=value, allowed='numbers, or {"b64": "..."}')
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        shown = text if len(text) <= NUM_SHOWN else f"{text[:NUM_SHOWN]}... ({len(text)} characters)"
        allowed = "standard base64: with + and /, padded with =, without line breaks and without data:...;base64,"
        raise InvalidInputError(f"{place}: not base64", received=shown, allowed=allowed) from None
    return read_bytes(data, spec=spec, place=place, images=images)


def read_bytes(data: bytes, *, spec: InputSpec, place: str, images: ImageReader) -> np.ndarray:
    """Converts the bytes of one instance: the input's raw values, or a JPEG or PNG file if it takes images.

    Args:
        data: the bytes.
        spec: the input.
        place: the position of the bytes in the request, for messages.
        images: the reader of the request's images.

    Raises:
        InvalidInputError: the bytes are neither.
        BodyTooLargeError: the request's decoded images are too large.
    """
    num_raw_bytes = int(np.prod(cast("tuple[int, ...]", spec.shape))) if spec.is_fixed else None
    is_raw = spec.dtype == "uint8" and len(data) == num_raw_bytes
    if num_channels_of(spec.shape) is not None and is_image_file(data):
        if not spec.takes_pixels:
            raise image_file_error(dtype=spec.dtype, place=place)
        try:
            return images.read(data, shape=spec.shape, dtype=spec.dtype, place=place)
        except InvalidInputError:
            if not is_raw:  # raw pixels may begin like an image file
                raise
    if is_raw:
        return np.frombuffer(data, np.uint8).reshape(cast("tuple[int, ...]", spec.shape))
    raise _bytes_refused(data, spec, place, num_raw_bytes=num_raw_bytes)


def _bytes_refused(data: bytes, spec: InputSpec, place: str, *, num_raw_bytes: int | None) -> InvalidInputError:
    """Returns the error for bytes that are neither the input's raw values nor an image file that it accepts."""
    file = "a JPEG or PNG file"
    if spec.takes_pixels and (num_raw_bytes is None or spec.dtype != "uint8"):
        return InvalidInputError(f"{place}: bytes", received=_describe(data), allowed=f"{file}, or numbers")
    if spec.dtype != "uint8":
        return InvalidInputError(f"{place}: bytes", allowed=f"{spec.dtype} of shape {spell(spec.shape)} as numbers")
    if num_raw_bytes is None:
        return InvalidInputError(f"{place}: bytes do not say their shape", allowed=f"numbers of {spell(spec.shape)}")
    raw = f"{num_raw_bytes} bytes, the raw values of shape {spell(spec.shape)} in row-major order"
    allowed = f"{raw}, or {file}" if spec.takes_pixels else raw
    return InvalidInputError(f"{place}: bytes", received=_describe(data), allowed=allowed)


def _describe(data: bytes) -> str:
    name = format_of(data)
    return f"{len(data)} bytes" if name is None else f"{name}, {len(data)} bytes"


def why_out_of_range(array: np.ndarray, wanted: np.dtype[Any]) -> str | None:
    """Returns which values a dtype can represent if an array has others; they are never changed to fit.

    Args:
        array: numbers, or truth values for a dtype of these.
        wanted: the dtype.

    Returns:
        The values that are allowed; None if all values fit.
    """
    if not array.size or wanted.kind == "b":
        return None
    low, high = array.min(), array.max()
    if wanted.kind == "f":
        limit = float(np.finfo(wanted).max)
        fits = -limit <= float(low) and float(high) <= limit
        return None if fits else f"numbers within {-limit:.3g} to {limit:.3g}"
    whole = array.dtype.kind in "iu" or bool((array == np.floor(array)).all())
    info = np.iinfo(wanted)
    fits = whole and int(info.min) <= low and high <= int(info.max)
    return None if fits else f"whole numbers from {info.min} to {info.max}"


def fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Returns whether a shape is that of a specification, where None stands for any size."""
    return len(shape) == len(wanted) and all(w is None or s == w for s, w in zip(shape, wanted, strict=True))


def spell(shape: tuple[int | None, ...]) -> str:
    """Returns the shape of a specification for messages, such as "[any, 3]"."""
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
