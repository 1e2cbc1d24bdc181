"""Converts parameters between a model's arrays and the servers' buffers, within a compiled step.

Each server sends one buffer per dtype. A step takes these buffers as they are, slices them into the model's arrays, and
writes its gradients into buffers of the same layout. XLA does both as part of the step, so the host copies nothing.
"""

# JAX is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp

from lockstep.parameter_server.placement import Placement

ServerBuffers: TypeAlias = Sequence[dict[str, Any]]
"""For each server, its buffers by dtype name."""


def unflatten(placement: Placement, buffers: ServerBuffers) -> list[Any]:
    """Returns the variables of a placement.

    Args:
        placement: the placement of all variables.
        buffers: the buffers of each server.

    Returns:
        An array for each variable, in the placement's order.
    """
    found: list[Any] = []
    for variable, shards in zip(placement.variables, placement.by_variable, strict=True):
        parts = [
            buffers[shard.server][variable.dtype][shard.offset : shard.offset + shard.size].reshape(
                placement.shard_shape(shard)
            )
            for shard in shards
        ]
        found.append(parts[0] if len(parts) == 1 else jnp.concatenate(parts))
    return found


def flatten(
    placement: Placement, variables: Sequence[int], values: Sequence[Any]
) -> tuple[list[dict[str, Any]], list[tuple[bool, ...]]]:
    """Writes the values of one group's variables into buffers, one set per server, as a push sends them.

    Args:
        placement: the placement of all variables.
        variables: the variables of the group, by their indices in the placement.
        values: an array for each of these variables; None if it has no value.

    Returns:
        For each server, its buffers by dtype name; and for each server, whether there is a value for each of its shards
        of the group.
    """
    given = dict(zip(variables, values, strict=True))
    buffers: list[dict[str, Any]] = []
    masks: list[tuple[bool, ...]] = []
    for shards in placement.by_server:
        parts: dict[str, list[Any]] = {}
        mask: list[bool] = []
        for shard in shards:
            if shard.variable not in given:
                continue
            value = given[shard.variable]
            mask.append(value is not None)
            if value is not None:
                spec = placement.variables[shard.variable]
                part = value[shard.start : shard.end] if spec.shape else value
                parts.setdefault(spec.dtype, []).append(jnp.ravel(part).astype(spec.dtype))
        buffers.append({dtype: jnp.concatenate(pieces) for dtype, pieces in parts.items()})
        masks.append(tuple(mask))
    return buffers, masks
