"""Lets all copies of a variable share one buffer while planning, because a copy per chip would exceed the memory.

The virtual devices of a process share its memory, so the copies of a replicated array can be one array. The copies are
only read: the step is not run, and other computations of the script create new arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding


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
