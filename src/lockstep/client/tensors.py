"""Writes arrays as requests of the Open Inference Protocol with binary tensors, and reads the responses.

See `lockstep.tensors` for the form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from lockstep.errors import BodyTooLargeError, InvalidInputError, UnavailableError
from lockstep.tensors import SIZE, BinaryBody
from lockstep.tensors.datatypes import DATATYPES, datatype_of, to_bytes

ONLY_INPUT: Final = ""
"""The name of the input of an array that is sent to a model with one input, which the server knows the name of."""


def write_tensors(arrays: Mapping[str, np.ndarray], *, max_bytes: int) -> Iterator[BinaryBody]:
    """Yields the bodies of requests, each with as many rows as the maximum size allows.

    Args:
        arrays: arrays of shape ``[n, ...]`` by input name, with the same n of 1 or more; `ONLY_INPUT` names the only
            input of a model.
        max_bytes: the maximum size of a body, in bytes.

    Raises:
        InvalidInputError: an array has a type that the protocol does not have.
        BodyTooLargeError: a single row is too large for a request.
    """
    for name, array in arrays.items():
        if datatype_of(array.dtype) is None:
            what = f"input {name}: dtype" if name else "instances: dtype"
            raise InvalidInputError(what, received=array.dtype.name, allowed=[d.name for d in DATATYPES.values()])
    num_rows = len(next(iter(arrays.values())))
    row_bytes = sum(array.nbytes // num_rows for array in arrays.values())
    # The numbers in the JSON have the most digits if all rows are sent at once.
    head_bytes = len(_head(arrays, num_rows=num_rows))
    if head_bytes + row_bytes > max_bytes:
        raise BodyTooLargeError(
            "instances[0] is too large for a request",
            received=f"{row_bytes} bytes",
            allowed=f"requests of {max_bytes} bytes",
        )
    step = (max_bytes - head_bytes) // row_bytes if row_bytes else num_rows
    for start in range(0, num_rows, step):
        parts = {name: array[start : start + step] for name, array in arrays.items()}
        head = _head(parts, num_rows=min(step, num_rows - start))
        content = b"".join((head, *(to_bytes(part) for part in parts.values())))
        yield BinaryBody(content=content, header_length=len(head))


def _head(arrays: Mapping[str, np.ndarray], *, num_rows: int) -> bytes:
    inputs = [
        {
            **({"name": name} if name else {}),
            "shape": [num_rows, *array.shape[1:]],
            "datatype": datatype_of(array.dtype),
            "parameters": {SIZE: array.nbytes},
        }
        for name, array in arrays.items()
    ]
    document = {"parameters": {"binary_data_output": True}, "inputs": inputs}
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def read_tensors(body: BinaryBody) -> dict[str, np.ndarray]:
    """Returns the outputs of a response: arrays of shape ``[n, ...]`` by output name. They share the response's memory.

    Raises:
        UnavailableError: the response does not have the protocol's form, so that another server has sent it.
    """
    view = memoryview(body.content)
    start = body.header_length
    found: dict[str, np.ndarray] = {}
    try:
        for tensor in json.loads(bytes(view[:start]))["outputs"]:
            dtype, shape = DATATYPES[tensor["datatype"]], tuple(tensor["shape"])
            end = start + int(tensor["parameters"][SIZE])
            if end - start != math.prod(shape) * dtype.itemsize or not start <= end <= len(view):
                raise ValueError("the sizes differ")
            found[tensor["name"]] = np.frombuffer(view[start:end], dtype).reshape(shape)
            start = end
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UnavailableError(
            "the response has no binary tensors", received=_shown(error), action="check the service's URL"
        ) from None
    return found


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def join_rows(parts: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Returns the outputs of several responses one after the other, by output name."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
