"""One buffer for all copies of a variable, in a process that plans: a copy for each chip of a large slice fits nowhere.

The virtual devices of a process share its memory, so that the copies of a replicated array can be one array. They are
read, never written: a step is not run, and whatever else the script computes makes arrays of its own.
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


def computing_once(should_shard: Callable[..., bool]) -> Callable[..., bool]:
    """Has a replicated variable's initial value be computed once: Keras computes a large one on every device."""

    @functools.wraps(should_shard)
    def wrapper(init_layout: Any, *args: Any, **kwargs: Any) -> bool:
        return not _is_copied(init_layout) and should_shard(init_layout, *args, **kwargs)

    return wrapper


def sharing_copies(distribute_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Has all copies of a replicated array hold one buffer of the host."""

    @functools.wraps(distribute_tensor)
    def wrapper(tensor: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        is_whole = isinstance(tensor, jax.Array) and not isinstance(tensor, Tracer)
        if not is_whole or not _is_copied(sharding) or tensor.sharding == sharding or not tensor.is_fully_replicated:
            return distribute_tensor(tensor, layout, *args, **kwargs)
        if jnp.issubdtype(tensor.dtype, jax.dtypes.extended):  # random keys are no plain memory
            return distribute_tensor(tensor, layout, *args, **kwargs)
        host = np.asarray(tensor)
        copies = [jax.device_put(host, device, may_alias=True) for device in sharding.mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(tensor.shape, sharding, copies)

    return wrapper


def _is_copied(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.is_fully_replicated and sharding.mesh.size > 1
