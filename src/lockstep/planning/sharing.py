"""Keeps variables small in memory while planning: a model may be larger than this machine, and has a copy per chip.

The virtual devices of a process share its memory, so the copies of a replicated array can be one array. The copies are
only read: the step is not run, and other computations of the script create new arrays. A large variable gets zeros
instead of its initial value. Their pages take memory only where something is written, which is nowhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding

from lockstep.upstream.keras_variables import choose_layout, layout_of, set_stored_value, stored_dtype

LEAST_BYTES: Final = 2**20
"""The size from which a variable's initial values are left out."""
_ALIGNMENT: Final = 64
"""Of buffers that JAX uses without copying them, in bytes."""


def wrap_initialize_with_initializer(initialize: Callable[..., None]) -> Callable[..., None]:
    """Wraps a method of Keras's variables so that a large one gets zeros that take no memory."""

    @functools.wraps(initialize)
    def wrapper(self: Any, initializer: Any, *args: Any, **kwargs: Any) -> None:
        shape, dtype = tuple(self.shape), jnp.dtype(stored_dtype(self))
        if math.prod(shape) * dtype.itemsize < LEAST_BYTES:
            initialize(self, initializer, *args, **kwargs)
            return
        choose_layout(self)
        layout = layout_of(self)
        set_stored_value(self, _zeros(shape, dtype, getattr(layout, "backend_layout", layout)))

    return wrapper


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any], sharding: Sharding | None) -> jax.Array:
    if sharding is None:
        return jax.device_put(_untouched_zeros(shape, dtype), may_alias=True)
    host = _untouched_zeros(sharding.shard_shape(shape), dtype)
    shards = [jax.device_put(host, device, may_alias=True) for device in sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _untouched_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    size_bytes = math.prod(shape) * dtype.itemsize
    buffer = np.zeros(size_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size_bytes].view(dtype).reshape(shape)


def wrap_should_shard_at_init(should_shard: Callable[..., bool]) -> Callable[..., bool]:
    """Wraps a function of Keras so that a replicated variable's initial value is computed once, not on every device."""

    @functools.wraps(should_shard)
    def wrapper(init_layout: Any, *args: Any, **kwargs: Any) -> bool:
        return not _is_copied(init_layout) and should_shard(init_layout, *args, **kwargs)

    return wrapper


def wrap_distribute_tensor(distribute_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of Keras so that all copies of a replicated array share one host buffer."""

    @functools.wraps(distribute_tensor)
    def wrapper(tensor: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        is_whole = isinstance(tensor, jax.Array) and not isinstance(tensor, Tracer)
        if not is_whole or not _is_copied(sharding) or tensor.sharding == sharding or not tensor.is_fully_replicated:
            return distribute_tensor(tensor, layout, *args, **kwargs)
        if jnp.issubdtype(tensor.dtype, jax.dtypes.extended):  # random keys are not plain memory
            return distribute_tensor(tensor, layout, *args, **kwargs)
        host = np.asarray(tensor)
        copies = [jax.device_put(host, device, may_alias=True) for device in sharding.mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(tensor.shape, sharding, copies)

    return wrapper


def _is_copied(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.is_fully_replicated and sharding.mesh.size > 1
