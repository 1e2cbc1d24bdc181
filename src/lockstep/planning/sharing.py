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
import keras
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from keras.src.backend.jax import core, distribution_lib

from lockstep.errors import BackendError


def share_copies() -> None:
    """Has Keras's variables hold one buffer for all virtual devices that have a copy, in this process.

    Raises:
        BackendError: this version of Keras places its variables in another way.
    """
    if not (hasattr(distribution_lib, "distribute_tensor") and hasattr(core, "should_shard_at_init")):
        raise BackendError(
            "this version of Keras places variables in another way than the one Lockstep knows",
            received=f"keras {keras.__version__}",
            action="install the version of Keras that Lockstep's lock file names",
        )
    distribution_lib.distribute_tensor = _sharing(distribution_lib.distribute_tensor)
    core.should_shard_at_init = _sparing(core.should_shard_at_init)


def _sparing(should_shard: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Keras computes a large initial value on every device; a replicated one is computed once here."""

    @functools.wraps(should_shard)
    def wrapper(init_layout: Any, shape: Any) -> bool:
        return not _is_copied(init_layout) and should_shard(init_layout, shape)

    return wrapper


def _sharing(distribute_tensor: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(distribute_tensor)
    def wrapper(tensor: Any, layout: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        is_whole = isinstance(tensor, jax.Array) and not isinstance(tensor, Tracer)
        if not is_whole or not _is_copied(sharding) or tensor.sharding == sharding or not tensor.is_fully_replicated:
            return distribute_tensor(tensor, layout)
        if jnp.issubdtype(tensor.dtype, jax.dtypes.extended):  # random keys are no plain memory
            return distribute_tensor(tensor, layout)
        host = np.asarray(tensor)
        copies = [jax.device_put(host, device, may_alias=True) for device in sharding.mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(tensor.shape, sharding, copies)

    return wrapper


def _is_copied(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.is_fully_replicated and sharding.mesh.size > 1
