"""Variables that are assigned to each other, each with a buffer of its own.

``target.assign(online)`` outside compiled code gives Keras's two variables one array. A compiled step gives the old
buffers of what it writes away, `fit`'s too: then the other variable's array is gone, or XLA refuses to give one buffer
away twice. `install` has such an assignment copy, as TensorFlow's variables do.
"""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import jax.numpy as jnp
import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope

_MARK: Final = "_lockstep_original"


def install() -> None:
    """Has Keras's variables copy what they are assigned from another one; a second call does nothing."""
    owner = next(kind for kind in keras.Variable.__mro__ if "assign" in vars(kind))
    original = vars(owner)["assign"]
    if not hasattr(original, _MARK):
        wrapper = _copying(original)
        setattr(wrapper, _MARK, original)
        owner.assign = wrapper


def _copying(assign: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(assign)
    def wrapper(self: Any, value: Any) -> Any:
        if isinstance(value, keras.Variable) and not in_stateless_scope():
            value = jnp.copy(value.value)
        return assign(self, value)

    return wrapper


def separate(variables: Iterable[Any]) -> None:
    """Gives each of these variables an array of its own, by copying one that another of them has too.

    They come to have the same one by ``target.assign(online.value)``: what is assigned there is an array like others.
    """
    seen: set[int] = set()
    for variable in variables:
        if id(variable._value) in seen:
            variable._value = jnp.copy(variable._value)
        seen.add(id(variable._value))
