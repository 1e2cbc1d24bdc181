"""Decompresses a push: returns a gradient for each value, as if all of them had been sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.compression import BFLOAT16
from lockstep.parameter_server.protocol import (
    INDICES,
    Group,
    Packing,
    Part,
    Push,
    gradients_for,
    indices_for,
    named,
    of_kind,
)
from lockstep.parameter_server.server.shards import DenseShards

Array = np.ndarray[Any, Any]


def expand(
    push: Push, arrays: Mapping[str, Array], *, dense: DenseShards, groups: tuple[Group, ...]
) -> tuple[Push, Mapping[str, Array]]:
    """Returns a push in its uncompressed form.

    Args:
        push: the header of the push.
        arrays: the arrays of the push.
        dense: the shards that the push is for.
        groups: the groups of these shards.

    Raises:
        InvalidInputError: the arrays do not match the header.
    """
    allowed = {f"{indices_for(part.group)}:" for part in push.parts if part.packing is Packing.TOP}
    odd = [name for name in arrays if name.startswith(INDICES) and name[: name.index(":") + 1] not in allowed]
    if odd:
        raise InvalidInputError("indices of gradients in a push that has all of them", received=odd[0])
    if all(part.packing is Packing.WHOLE for part in push.parts):
        return push, arrays
    found = {name: array for name, array in arrays.items() if not name.startswith(INDICES)}
    for part in push.parts:
        if part.packing is Packing.WHOLE:
            continue
        sizes = dense.sizes(group=part.group, has_gradient=part.has_gradient)
        if groups[part.group].optimizer is None:
            raise InvalidInputError(
                f"what is added to group {part.group} was made smaller", received=part.packing.value, allowed="whole"
            )
        found |= named(gradients_for(part.group), _expand_part(part, arrays, sizes))
    return replace(push, parts=tuple(replace(part, packing=Packing.WHOLE) for part in push.parts)), found


def _expand_part(part: Part, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    gradients = of_kind(gradients_for(part.group), arrays)
    indices = of_kind(indices_for(part.group), arrays)
    if gradients.keys() != sizes.keys() or (part.packing is Packing.TOP and indices.keys() != sizes.keys()):
        raise InvalidInputError(
            f"gradients of group {part.group} of other dtypes than its variables",
            received=sorted(gradients.keys() | indices.keys()),
            allowed=f"{sorted(sizes)}, indices beside them where they are the largest alone",
        )
    if part.packing is Packing.BFLOAT16:
        return {dtype: _widened(gradients[dtype], dtype) for dtype in sizes}
    return {dtype: _spread(gradients[dtype], indices[dtype], dtype=dtype, size=size) for dtype, size in sizes.items()}


def _widened(values: Array, dtype: str) -> Array:
    if values.dtype != jnp.dtype(BFLOAT16):
        raise InvalidInputError("gradients declared as bfloat16", received=str(values.dtype))
    return values.astype(jnp.dtype(dtype))


def _spread(values: Array, indices: Array, *, dtype: str, size: int) -> Array:
    if (
        values.dtype != jnp.dtype(dtype)
        or indices.dtype != np.int32
        or values.ndim != 1
        or values.shape != indices.shape
    ):
        raise InvalidInputError(
            "the largest gradients and their indices",
            received=f"{values.dtype}{list(values.shape)} and {indices.dtype}{list(indices.shape)}",
            allowed=f"{dtype}[n] and int32[n]",
        )
    if indices.size and (indices[0] < 0 or indices[-1] >= size or not np.all(indices[1:] > indices[:-1])):
        raise InvalidInputError(
            "indices of the largest gradients",
            received="not rising, or out of range",
            allowed=f"rising, 0 to {size - 1}",
        )
    found = np.zeros(size, jnp.dtype(dtype))
    found[indices] = values
    return found
