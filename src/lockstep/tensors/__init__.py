"""Tensors of the Open Inference Protocol in binary form, as clients and prediction servers exchange them.

The protocol is also known as KServe v2. Its binary tensor data extension, which Triton has introduced, puts the values
of tensors behind the JSON of a body: little-endian, in row-major order, without padding. A header of the request or
response, `HEADER_LENGTH`, has the length of the JSON. This module imports no NumPy; `lockstep.tensors.datatypes` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

HEADER_LENGTH: Final = "inference-header-content-length"
"""The HTTP header with the length of the JSON at the beginning of a body, in bytes."""
BINARY_TYPE: Final = "application/octet-stream"
"""The content type of a body with binary tensors."""
SIZE: Final = "binary_data_size"
"""The parameter of a tensor with the size of its binary data, in bytes."""
_EXTENSION: Final = "binary_tensor_data"


@final
@dataclass(frozen=True, kw_only=True)
class BinaryBody:
    """A body with binary tensors.

    Attributes:
        content: the body.
        header_length: the length of the JSON at its beginning, in bytes.
    """

    content: bytes
    header_length: int


def server_metadata() -> dict[str, Any]:
    """Returns the protocol's metadata of a server: its name, its version, and the extensions that it has."""
    from importlib.metadata import version  # imported on use: the command line starts faster without it

    return {"name": "lockstep", "version": version("lockstep-train"), "extensions": [_EXTENSION]}
