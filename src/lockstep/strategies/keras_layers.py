"""Changes of Keras's layers within a replica's step: random numbers, and synchronized batch normalisation.

- A random generator gives each replica different numbers. Its state advances in step on all replicas, and the replica's
  number is folded into the seeds that it returns. The first replica draws what one device would draw.
- ``BatchNormalization(synchronized=True)``, which Keras rejects on JAX, computes its moments over all replicas. Under
  ``fit``, which is one program over the whole batch, moments are computed over the whole batch anyway.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from lockstep.strategies.loops.replica import ReduceOp, active_replica_context
from lockstep.strategies.uniform import uniform_writes


def wrap_seed_next(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a random generator so that each replica receives different numbers."""

    @functools.wraps(draw)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = active_replica_context()
        if context is None or context.strategy is None:
            return draw(self, *args, **kwargs)
        with uniform_writes():
            seed = draw(self, *args, **kwargs)
        replica = context.replica_id_in_sync_group
        own = jax.random.fold_in(jnp.asarray(seed, jnp.uint32), replica)
        return jnp.where(replica == 0, seed, own.astype(seed.dtype))

    return wrapper


def wrap_normalization_init(initialize: Callable[..., None]) -> Callable[..., None]:
    """Wraps the initializer of batch normalisation so that it accepts ``synchronized=True``."""
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        synchronized = bool(bound.arguments.get("synchronized"))
        bound.arguments["synchronized"] = False
        initialize(*bound.args, **bound.kwargs)
        bound.arguments["self"].synchronized = synchronized

    vars(wrapper)["__signature__"] = signature  # Keras reads a layer's arguments from it
    return wrapper


def wrap_moments(moments: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps batch normalisation so that synchronized layers compute their moments over all replicas."""

    @functools.wraps(moments)
    def wrapper(self: Any, inputs: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.synchronized or isinstance(inputs, keras.KerasTensor):
            return moments(self, inputs, mask, *args, **kwargs)
        kept = self.axis % inputs.ndim
        axes = tuple(dim for dim in range(inputs.ndim) if dim != kept)
        # In float32, as Keras does for half precision, because sums of squares overflow float16.
        wide = jnp.asarray(inputs, jnp.promote_types(inputs.dtype, jnp.float32))
        weights = jnp.ones_like(wide)
        if mask is not None:
            weights = jnp.broadcast_to(jnp.asarray(mask, wide.dtype)[..., None], wide.shape)
        total, count = _sum_over_replicas([jnp.sum(wide * weights, axes), jnp.sum(weights, axes)])
        count = count if mask is None else count + keras.config.epsilon()
        shape = [1 if dim in axes else size for dim, size in enumerate(wide.shape)]
        mean = total / count
        (squares,) = _sum_over_replicas([jnp.sum(jnp.square(wide - mean.reshape(shape)) * weights, axes)])
        return _as_dtype(mean, inputs.dtype), _as_dtype(squares / count, inputs.dtype)

    return wrapper


def _sum_over_replicas(values: list[Any]) -> list[Any]:
    context = active_replica_context()
    return values if context is None else context.all_reduce(ReduceOp.SUM, values)


def _as_dtype(value: Any, dtype: Any) -> Any:
    if dtype in (jnp.float16, jnp.bfloat16):
        limits = jnp.finfo(jnp.float16)
        value = jnp.clip(value, limits.min, limits.max)  # as Keras does
    return value.astype(dtype)
