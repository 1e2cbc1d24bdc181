"""Sums arrays over the replicas in buckets.

A collective of a small array costs about as much as one of nothing: on two processes of one machine, 100 arrays of
0.1 MB take 71 ms one by one and 9 ms as one buffer. Gradients are packed as in PyTorch's DDP (Li et al., 2020, "PyTorch
Distributed"). Each buffer holds arrays of one dtype, up to a size. Buffers are filled in the order in which the
backward pass computes the gradients, the last layer's first, so a bucket can be sent while the gradients of earlier
layers are still being computed.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp

from lockstep.errors import InvalidInputError
from lockstep.strategies.mesh import BATCH_AXIS

DEFAULT_BUCKET_BYTES: Final = 25 * 2**20
"""DDP's default. Larger buffers gain little over a network, and are sent later."""


@final
@dataclass(frozen=True, kw_only=True)
class CommunicationOptions:
    """How values are sent between replicas. The names are ``tf.distribute.experimental.CommunicationOptions``'s.

    Attributes:
        bytes_per_pack: the maximum size of a bucket, in bytes; 0 leaves the choice to Lockstep. A larger array is sent
            alone.
        timeout_seconds: the time that a peer may be silent before this process ends, in seconds; None for the
            strategy's default.

    Raises:
        InvalidInputError: a number is out of range.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise InvalidInputError("bytes_per_pack", received=self.bytes_per_pack, allowed="0 or more")
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < math.inf:
            raise InvalidInputError("timeout_seconds", received=self.timeout_seconds, allowed="more than 0, or None")

    @property
    def bucket_bytes(self) -> int:
        """The maximum size of a bucket, in bytes."""
        return self.bytes_per_pack or DEFAULT_BUCKET_BYTES


def plan_buckets(arrays: Sequence[tuple[str, int]], *, bucket_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Decides which arrays are sent together.

    Args:
        arrays: the dtype and the size in bytes of each array, in the order of the forward pass.
        bucket_bytes: the maximum size of a bucket, in bytes. A larger array has a bucket of its own.

    Returns:
        The positions of each bucket's arrays. Buckets and positions are in the order of the backward pass.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[str, tuple[list[int], int]] = {}
    for position in range(len(arrays) - 1, -1, -1):
        dtype, size_bytes = arrays[position]
        bucket, used_bytes = open_buckets.get(dtype, (None, 0))
        if bucket is None or used_bytes + size_bytes > bucket_bytes:
            bucket, used_bytes = [], 0
            buckets.append(bucket)
        bucket.append(position)
        open_buckets[dtype] = (bucket, used_bytes + size_bytes)
    return tuple(tuple(bucket) for bucket in buckets)


def all_sum(arrays: Sequence[Any], *, options: CommunicationOptions) -> list[Any]:
    """Sums arrays over the replicas, in buckets. For code that is mapped over the mesh's batch axis.

    Args:
        arrays: the arrays, in the order of the forward pass. None stays None.
        options: the size of a bucket.

    Returns:
        The sums, in the same order.
    """
    if jax.lax.axis_size(BATCH_AXIS) == 1:
        return list(arrays)  # one replica: nothing to sum
    present = [position for position, array in enumerate(arrays) if array is not None]
    described = [(str(arrays[at].dtype), math.prod(arrays[at].shape) * arrays[at].dtype.itemsize) for at in present]
    sums: list[Any] = [None] * len(arrays)
    for bucket in plan_buckets(described, bucket_bytes=options.bucket_bytes):
        members = [present[index] for index in bucket]
        if len(members) == 1:
            sums[members[0]] = jax.lax.psum(arrays[members[0]], BATCH_AXIS)
            continue
        packed = jax.lax.psum(_pack([arrays[at] for at in members]), BATCH_AXIS)
        start = 0
        for at in members:
            size = math.prod(arrays[at].shape)
            sums[at] = jax.lax.slice_in_dim(packed, start, start + size).reshape(arrays[at].shape)
            start += size
    return sums


def _pack(arrays: Sequence[Any]) -> Any:
    """Returns the elements of all arrays in one buffer."""
    return jax.lax.platform_dependent(
        [array.reshape(-1) for array in arrays], cpu=_write_one_by_one, default=jnp.concatenate
    )


def _write_one_by_one(parts: Sequence[Any]) -> Any:
    """Joins arrays on CPUs, where XLA merges a concatenation with what computes its parts.

    Sums among them would then run as scalar loops.
    """
    buffer, start = jnp.zeros(sum(part.size for part in parts), parts[0].dtype), 0
    for part in parts:
        buffer = jax.lax.dynamic_update_slice(buffer, part, (start,))
        start += part.size
    return buffer
