"""Parses instances: lines of JSON, rows of CSV, and records, into what `read_instances` takes."""

from __future__ import annotations

import base64
import contextlib
import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast, final

import numpy as np

from lockstep.data.examples.example import decode_example
from lockstep.errors import CorruptDataError, InvalidInputError, closest
from lockstep.serving.images import is_image_file
from lockstep.serving.instances import B64, InputSpec


@final
@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance, as `lockstep.serving.instances.read_instances` takes it.

    Attributes:
        value: the value of the only input, or the values by input name.
        key: what is copied to the prediction; None without a key field.
    """

    value: object
    key: object = None


def parse_line(line: bytes, *, key_field: str | None) -> Instance:
    """Parses a line of JSON.

    Args:
        line: the line.
        key_field: the field that is not for the model; None if there is none.

    Raises:
        InvalidInputError: the line is not JSON, or has no such field.
    """
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the line is not JSON: {error}") from None
    if key_field is None:
        return Instance(value=value)
    if not isinstance(value, dict) or key_field not in value:
        raise InvalidInputError(f"the instance has no field {key_field}, which lockstep.keyField names")
    fields = cast("dict[str, object]", value)
    return Instance(value={name: part for name, part in fields.items() if name != key_field}, key=fields[key_field])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@final
class CsvRows:
    """Parses the rows of one file.

    The first row is a header if one of its values is not a number. A header that has the name of each input gives each
    input its column. Otherwise the values of a row are those of the only input, in row-major order.

    Args:
        first_line: the first line of the file.
        specs: the model's inputs.
        key_field: the column that is not for the model; None if there is none.
    """

    def __init__(self, first_line: bytes, *, specs: Sequence[InputSpec], key_field: str | None) -> None:
        self._specs = specs
        self._key_field = key_field
        values = _split(first_line)
        self.has_header = not all(_is_number(value) for value in values)
        self._names = [value.strip() for value in values] if self.has_header else None

    def parse(self, line: bytes) -> Instance:
        """Parses a row.

        Raises:
            InvalidInputError: the row does not fit the header or the model's inputs.
        """
        values = _split(line)
        names = self._names
        if names is not None and len(values) != len(names):
            raise InvalidInputError("the row has another number of values than the header", received=len(values))
        key: object = None
        if self._key_field is not None:
            if names is None or self._key_field not in names:
                raise InvalidInputError(
                    f"the file's first line names no column {self._key_field}, which lockstep.keyField names"
                )
            at = names.index(self._key_field)
            key = values[at]
            values, names = (part[:at] + part[at + 1 :] for part in (values, names))
        return Instance(value=self._by_name(values, names), key=key)

    def _by_name(self, values: list[str], names: list[str] | None) -> object:
        wanted = [spec.name for spec in self._specs]
        if names is not None and set(names) == set(wanted):
            numbers = {name: _number(value, name) for value, name in zip(values, names, strict=True)}
            return {spec.name: _shaped([numbers[spec.name]], spec) for spec in self._specs}
        if len(wanted) > 1:
            raise InvalidInputError(
                "the columns are not the model's inputs",
                received="no header" if names is None else names,
                allowed=f"a first line with {', '.join(wanted)}",
            )
        labels = names or [f"column {number}" for number in range(1, len(values) + 1)]
        row = [_number(value, name) for value, name in zip(values, labels, strict=True)]
        return _shaped(row, self._specs[0])


def _split(line: bytes) -> list[str]:
    try:
        rows = list(csv.reader([line.decode().rstrip("\r")], strict=True))
    except (ValueError, csv.Error) as error:
        raise InvalidInputError(f"the line is not CSV: {error}") from None
    return rows[0] if rows else []


def _is_number(text: str) -> bool:
    return _read_number(text) is not None


def _number(text: str, name: str) -> float | int:
    number = _read_number(text)
    if number is None or not math.isfinite(number):
        raise InvalidInputError(f"{name} is not a finite number", received=text)
    return number


def _read_number(text: str) -> float | int | None:
    if "_" not in text:  # Python reads 1_000 as a number
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
    return None


def _shaped(values: Sequence[Any] | np.ndarray, spec: InputSpec) -> object:
    """Returns the values of an input in row-major order as lists of its shape, if the shape says how."""
    array = np.asarray(values)
    num_unknown = spec.shape.count(None)
    shape = tuple(-1 if size is None else size for size in spec.shape)
    try:
        shaped = array.reshape(shape) if num_unknown <= 1 else None
    except ValueError:
        shaped = None
    if shaped is None:
        allowed = f"as many as {list(spec.shape)} has" if num_unknown <= 1 else f"an input with a shape, not {shape}"
        raise InvalidInputError(f"input {spec.name}: number of values", received=array.size, allowed=allowed)
    if spec.dtype == "bool" and np.isin(shaped, (0, 1)).all():
        shaped = shaped.astype(bool)
    return shaped.tolist()


def parse_record(record: bytes, *, specs: Sequence[InputSpec], key_field: str | None) -> Instance:
    """Parses a record: a ``tf.train.Example`` with a feature for each input, or an image file for the only input.

    A model with one input may also take the only feature. Other features are not read, so that records of training data
    can be used as they are.

    Args:
        record: the record.
        specs: the model's inputs.
        key_field: the feature that is copied to the prediction; None if there is none.

    Raises:
        InvalidInputError: the record is neither, or lacks a feature, or a feature has another number of values.
    """
    if len(specs) == 1 and key_field is None and is_image_file(record):
        return image_instance(record)
    try:
        features = decode_example(record)
    except CorruptDataError as error:
        raise InvalidInputError(str(error)) from None
    key = None if key_field is None else _key(features, key_field)
    named = {name: values for name, values in features.items() if name != key_field}
    if len(specs) == 1 and specs[0].name not in named and len(named) == 1:
        return Instance(value=_feature_value(next(iter(named.values())), specs[0]), key=key)
    for spec in specs:
        if spec.name not in named:
            raise InvalidInputError(
                f"the record has no feature {spec.name}",
                received=sorted(named),
                action=closest(spec.name, sorted(named)),
            )
    return Instance(value={spec.name: _feature_value(named[spec.name], spec) for spec in specs}, key=key)


def image_instance(data: bytes) -> Instance:
    """Returns a JPEG or PNG file as an instance."""
    return Instance(value={B64: base64.b64encode(data).decode()})


def _key(features: Mapping[str, np.ndarray | list[bytes]], name: str) -> object:
    values = features.get(name)
    if values is None or len(values) != 1:
        raise InvalidInputError(f"the record has no feature {name} with one value, which lockstep.keyField names")
    value = values[0]
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value.item()


def _feature_value(values: np.ndarray | list[bytes], spec: InputSpec) -> object:
    if isinstance(values, np.ndarray):
        return _shaped(values, spec)
    if len(values) != 1:
        raise InvalidInputError(f"feature {spec.name}: number of byte strings", received=len(values), allowed="1")
    return image_instance(values[0]).value
