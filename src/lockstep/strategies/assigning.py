"""Gives variables that are assigned to each other separate buffers.

In Keras, ``target.assign(online)`` outside compiled code makes both variables use one array. A compiled step, also
`fit`'s, donates the old buffers of the variables that it writes. Then the other variable's array is deleted, or XLA
refuses to donate one buffer twice. `wrap_assign` makes such an assignment copy the array, as TensorFlow's variables do.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from lockstep.upstream.keras_scopes import in_stateless_scope
from lockstep.upstream.keras_variables import set_stored_value, stored_value


def wrap_assign(assign: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``Variable.assign`` so that it copies the value of another variable."""

    @functools.wraps(assign)
    def wrapper(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, keras.Variable) and not in_stateless_scope():
            value = jnp.copy(value.value)
        return assign(self, value, *args, **kwargs)

    return wrapper


def own_arrays(variables: Iterable[Any]) -> list[Any]:
    """Returns the arrays of variables, each of them of one variable alone and committed to its devices.

    Variables come to share an array through ``target.assign(online.value)``, where `wrap_assign` sees a plain array:
    it is copied. An array that is not committed is that of a new variable, or of a metric that was reset. The results
    of a compiled step are committed, so that the step would be compiled again for them.
    """
    seen: set[int] = set()
    values: list[Any] = []
    for variable in variables:
        value = found = stored_value(variable)
        if id(value) in seen:
            value = jnp.copy(value)
        if not value.committed:
            value = jax.device_put(value, value.sharding)
        if value is not found:
            set_stored_value(variable, value)
        seen |= {id(found), id(value)}  # a committed array shares the memory of the one that was not
        values.append(value)
    return values
