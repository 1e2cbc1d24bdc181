"""The form of AI Platform Prediction, JSON instances, which `lockstep.serving.instances` reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from lockstep.serving.instances import (
    Arrays,
    InputSpec,
    cast_exactly,
    read_instances,
    read_request,
    write_response,
)
from lockstep.serving.number_lists import read_numbers
from lockstep.serving.protocols.questions import BYTES_OF_A_NUMBER, Content, Question

AT_ONCE_BYTES: Final = 64 * 1024
"""Lists of numbers in bodies of up to this size are read on the event loop. It takes a tenth of a millisecond."""


def read_number_lists(body: bytes, *, inputs: Sequence[InputSpec], output_names: Sequence[str]) -> Question | None:
    """Reads ``{"instances": [...]}`` if it is fast: for one input, whose instances are lists of numbers.

    Returns:
        The request; None if `read_question` has to read it.
    """
    if len(inputs) != 1:
        return None
    numbers = read_numbers(body, inputs[0])
    array = None if numbers is None else cast_exactly(numbers, inputs[0].dtype)
    return None if array is None else _question({inputs[0].name: array}, output_names)


def read_question(body: bytes, *, inputs: Sequence[InputSpec], output_names: Sequence[str]) -> Question:
    """Reads ``{"instances": [...]}``. The response is ``{"predictions": [...]}``.

    Args:
        body: the body of the request. `read_number_lists` cannot read it if it has up to `AT_ONCE_BYTES`.
        inputs: the model's inputs.
        output_names: the names of the model's outputs.

    Raises:
        InvalidInputError: the body has another form, or an instance does not fit the model's inputs.
    """
    if len(body) > AT_ONCE_BYTES:
        question = read_number_lists(body, inputs=inputs, output_names=output_names)
        if question is not None:
            return question
    return _question(read_instances(read_request(body), specs=inputs), output_names)


def _question(arrays: Arrays, output_names: Sequence[str]) -> Question:
    return Question(arrays=arrays, write=partial(_write, names=output_names), size_of=_size_of)


def _write(outputs: Arrays, *, names: Sequence[str]) -> Content:
    return Content(body=write_response(outputs, names=names))


def _size_of(outputs: Arrays) -> int:
    return sum(array.size for array in outputs.values()) * BYTES_OF_A_NUMBER
