"""A request for predictions, once it was read, and the content of its response, whatever their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.serving.instances import Arrays

BYTES_OF_A_NUMBER: Final = 10
"""The approximate size of one number in JSON."""


@final
@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a response.

    Attributes:
        body: the body.
        headers: the headers that describe it; JSON by default.
    """

    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),)


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """A request for predictions.

    Attributes:
        arrays: the model's inputs: arrays of shape ``[n, *shape]`` by input name, in the order of the model's inputs.
        write: returns the response for the model's outputs, arrays of shape ``[n, ...]`` by output name.
        size_of: returns the approximate size of that response, in bytes.
    """

    arrays: Arrays
    write: Callable[[Arrays], Content]
    size_of: Callable[[Arrays], int]


Reader = Callable[[bytes], Question]
"""Reads the body of a request. Raises an `InvalidInputError` if it does not fit the model."""
