"""The form of AI Platform Prediction, JSON instances, which `lockstep.serving.instances` reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lockstep.serving.instances import Arrays, InputSpec, read_instances, read_request, write_response
from lockstep.serving.protocols.questions import BYTES_OF_A_NUMBER, Content, Question


def read_question(body: bytes, *, inputs: Sequence[InputSpec], output_names: Sequence[str]) -> Question:
    """Reads ``{"instances": [...]}``. The response is ``{"predictions": [...]}``.

    Args:
        body: the body of the request.
        inputs: the model's inputs.
        output_names: the names of the model's outputs.

    Raises:
        InvalidInputError: the body has another form, or an instance does not fit the model's inputs.
    """
    arrays = read_instances(read_request(body), specs=inputs)
    return Question(arrays=arrays, write=partial(_write, names=output_names), size_of=_size_of)


def _write(outputs: Arrays, *, names: Sequence[str]) -> Content:
    return Content(body=write_response(outputs, names=names))


def _size_of(outputs: Arrays) -> int:
    return sum(array.size for array in outputs.values()) * BYTES_OF_A_NUMBER
