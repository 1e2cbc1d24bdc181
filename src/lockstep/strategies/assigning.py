"""Variables that are assigned to each other, each with a buffer of its own.

``target.assign(online)`` outside compiled code gives Keras's two variables one array. A compiled step gives the old
buffers of what it writes away, `fit`'s too: then the other variable's array is gone, or XLA refuses to give one buffer
away twice. `copying` has such an assignment copy, as TensorFlow's variables do.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import keras

from lockstep.upstream.keras_scopes import in_stateless_scope
from lockstep.upstream.keras_variables import set_stored_value, stored_value


def copying(assign: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``Variable.assign`` copy what comes from another variable."""

    @functools.wraps(assign)
    def wrapper(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, keras.Variable) and not in_stateless_scope():
            value = jnp.copy(value.value)
        return assign(self, value, *args, **kwargs)

    return wrapper


def separate(variables: Iterable[Any]) -> None:
    """Gives each of these variables an array of its own, by copying one that another of them has too.

    They come to have the same one by ``target.assign(online.value)``: what is assigned there is an array like others.
    """
    seen: set[int] = set()
    for variable in variables:
        value = stored_value(variable)
        if id(value) in seen:
            value = jnp.copy(value)
            set_stored_value(variable, value)
        seen.add(id(value))
