"""Between a prediction request's JSON and arrays: instances in, predictions out.

The forms are AI Platform Prediction's: ``{"instances": [...]}`` is answered by ``{"predictions": [...]}``. An instance
is the value of the model's input, or an object of values by input name; bytes stand as ``{"b64": "..."}``. A prediction
is the value of the model's output, or an object of values by output name where it has several.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast, final

import numpy as np

from lockstep.errors import InvalidInputError, ModelError, closest

Arrays = dict[str, np.ndarray]
"""Arrays by input or output name; their first dim counts instances."""

B64: Final = "b64"


@final
@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: its name.
        shape: shape of one instance, without the batch's dim; None where any size goes.
        dtype: NumPy's name of the type that instances are read into.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def is_fixed(self) -> bool:
        """Whether every instance has the same shape."""
        return None not in self.shape

    def to_json(self) -> dict[str, object]:
        """Returns ``{"name", "shape", "dtype"}``, null in the shape where any size goes."""
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}


def read_request(body: bytes) -> list[object]:
    """Returns the instances of a request's body.

    Raises:
        InvalidInputError: the body is not ``{"instances": [...]}`` with one instance or more.
    """
    try:
        document: object = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the body is not JSON: {error}", allowed='{"instances": [...]}') from None
    if not isinstance(document, dict) or "instances" not in document:
        keys = sorted(map(str, document)) if isinstance(document, dict) else type(document).__name__
        raise InvalidInputError("the body has no instances", received=keys, allowed='{"instances": [...]}')
    unknown = sorted(str(key) for key in document if key != "instances")
    if unknown:
        raise InvalidInputError(f"unknown key {unknown[0]}", allowed='{"instances": [...]}')
    instances = cast("dict[str, object]", document)["instances"]
    if not isinstance(instances, list) or not instances:
        raise InvalidInputError("instances", received=instances, allowed="a list of one instance or more")
    return cast("list[object]", instances)


def read_instances(instances: Sequence[object], *, specs: Sequence[InputSpec]) -> Arrays:
    """Turns instances into one array for each input.

    Args:
        instances: the request's instances, one or more.
        specs: the model's inputs.

    Returns:
        Arrays of shape ``[len(instances), *shape]`` by input name.

    Raises:
        InvalidInputError: an instance does not fit; the message says which, what it is, and what fits.
    """
    rows = [_by_name(instance, index, specs) for index, instance in enumerate(instances)]
    arrays: Arrays = {}
    for spec in specs:
        where = [f"instances[{index}]" + (f".{spec.name}" if len(specs) > 1 else "") for index in range(len(rows))]
        values = [_value(row[spec.name], spec, place) for row, place in zip(rows, where, strict=True)]
        for value, place in zip(values, where, strict=True):
            if value.shape != values[0].shape:
                raise InvalidInputError(
                    f"{place}: its shape is not that of the first instance",
                    received=list(value.shape),
                    allowed=f"{list(values[0].shape)}, or a request of its own",
                )
        arrays[spec.name] = np.stack(values)
    return arrays


def write_predictions(outputs: Arrays, *, names: Sequence[str]) -> list[object]:
    """Turns output arrays into predictions.

    Args:
        outputs: arrays of shape ``[num_instances, ...]`` by output name.
        names: the outputs' names; a single one is written bare.

    Raises:
        ModelError: a prediction is not a finite number, which JSON cannot carry.
    """
    for name in names:
        finite = np.isfinite(outputs[name])
        if not finite.all():
            index = int(np.argwhere(~finite)[0][0])
            raise ModelError(
                f"the model's prediction for instances[{index}] is not a finite number",
                action="look for values that are far from what it was trained on",
            )
    if len(names) == 1:
        return cast("list[object]", outputs[names[0]].tolist())
    columns = [outputs[name].tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _by_name(instance: object, index: int, specs: Sequence[InputSpec]) -> Mapping[str, object]:
    names = [spec.name for spec in specs]
    is_object = isinstance(instance, dict) and set(instance) != {B64}
    if not is_object and len(specs) == 1:
        return {names[0]: instance}
    if not is_object:
        raise InvalidInputError(
            f"instances[{index}]", received=instance, allowed=f"an object with the inputs {', '.join(names)}"
        )
    found = cast("dict[str, object]", instance)
    for name in found:
        if name not in names:
            what = f"instances[{index}]: the model has no input {name}"
            raise InvalidInputError(what, allowed=names, action=closest(name, names))
    for name in names:
        if name not in found:
            raise InvalidInputError(f"instances[{index}]: input {name} is missing", received=sorted(found))
    return found


def _value(value: object, spec: InputSpec, place: str) -> np.ndarray:
    if isinstance(value, dict):
        return _bytes_value(cast("dict[str, object]", value), spec, place)
    try:
        array = np.asarray(value)
    except (ValueError, RecursionError):
        raise InvalidInputError(
            f"{place}: its lists have different lengths", allowed=f"numbers of shape {_spell(spec.shape)}"
        ) from None
    wanted = np.dtype(spec.dtype)
    kinds = "b" if wanted.kind == "b" else "iuf"
    if array.size and array.dtype.kind not in kinds:
        raise InvalidInputError(
            f"{place}: it holds something else than {'true and false' if kinds == 'b' else 'numbers'}",
            received=value,
            allowed=f"{spec.dtype} of shape {_spell(spec.shape)}",
        )
    if not _fits(array.shape, spec.shape):
        raise InvalidInputError(f"{place}: shape", received=list(array.shape), allowed=_spell(spec.shape))
    _check_range(array, wanted, place)
    return array.astype(wanted)


def _bytes_value(value: dict[str, object], spec: InputSpec, place: str) -> np.ndarray:
    text = value.get(B64)
    if set(value) != {B64} or not isinstance(text, str):
        raise InvalidInputError(place, received=value, allowed='numbers, or {"b64": "..."}')
    if spec.dtype != "uint8":
        raise InvalidInputError(f"{place}: bytes", allowed=f"{spec.dtype} of shape {_spell(spec.shape)} as numbers")
    if not spec.is_fixed:
        raise InvalidInputError(f"{place}: bytes do not say their shape", allowed=f"numbers of {_spell(spec.shape)}")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(f"{place}: not base64", received=text, allowed="standard base64") from None
    shape = cast("tuple[int, ...]", spec.shape)
    num_bytes = int(np.prod(shape, dtype=np.int64))
    if len(data) != num_bytes:
        raise InvalidInputError(
            f"{place}: bytes",
            received=f"{len(data)} bytes",
            allowed=f"{num_bytes} bytes, the raw values of shape {_spell(shape)} in row-major order",
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _check_range(array: np.ndarray, wanted: np.dtype[Any], place: str) -> None:
    """Refuses values that the model's type cannot hold, rather than bend them to fit."""
    if not array.size or wanted.kind == "b":
        return
    low, high = array.min(), array.max()
    if wanted.kind == "f":
        limit = float(np.finfo(wanted).max)
        bad = not (-limit <= float(low) and float(high) <= limit)
        allowed = f"numbers within {-limit:.3g} to {limit:.3g}"
    else:
        whole = array.dtype.kind in "iu" or bool((array == np.floor(array)).all())
        info = np.iinfo(wanted)
        bad = not whole or not (int(info.min) <= low and high <= int(info.max))
        allowed = f"whole numbers from {info.min} to {info.max}"
    if bad:
        raise InvalidInputError(f"{place}: a value does not fit {wanted}", received=f"{low} to {high}", allowed=allowed)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(w is None or s == w for s, w in zip(shape, wanted, strict=True))


def _spell(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
