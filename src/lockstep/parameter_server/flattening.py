"""Parameters between the form in which a model uses them and the servers' buffers: within a compiled step.

What servers send is one buffer for each of them and dtype. A step takes these as they are, cuts them into the model's
arrays, and lays its gradients into such buffers again; XLA does both as a part of the step, so the host copies nothing.
"""

# JAX is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp

from lockstep.parameter_server.placement import Placement

ServerBuffers: TypeAlias = Sequence[dict[str, Any]]
"""For each server, its buffers by the names of their dtypes."""


def unflatten(placement: Placement, buffers: ServerBuffers) -> list[Any]:
    """Returns the placement's variables.

    Args:
        placement: where everything is.
        buffers: each server's.

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
    """Lays values of some variables into the servers' buffers, as a push of one group has them.

    Args:
        placement: where everything is.
        variables: the group's, by their indices in the placement.
        values: an array for each, None where there is none.

    Returns:
        For each server its buffers; and for each of its shards of the group whether there is a value for it.
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
