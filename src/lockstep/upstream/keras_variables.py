"""Access to parts of Keras's variables, optimizers and random generators that are not public."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from keras.src.optimizers.base_optimizer import clip_by_global_norm
from keras.src.random.seed_generator import global_seed_generator
from keras.src.utils.jax_utils import is_in_jax_tracing_scope
from keras.src.utils.rng_utils import get_random_seed

__all__ = [
    "assign_and_place",
    "choose_layout",
    "clip_by_global_norm",
    "get_random_seed",
    "global_seed_generator",
    "is_in_jax_tracing_scope",
    "iterations_of",
    "layout_of",
    "learning_rate_of",
    "set_layout",
    "set_path",
    "set_stored_value",
    "shaped_as",
    "stored_dtype",
    "stored_value",
    "trainable_variables_of",
]


def stored_value(variable: Any) -> Any:
    """Returns the array that a variable holds, regardless of scopes; None if a loop of Keras has removed it."""
    return variable._value


def stored_dtype(variable: Any) -> str:
    """Returns the dtype of a variable's array. Within an autocast scope, `Variable.dtype` is another one."""
    return variable._dtype


def set_stored_value(variable: Any, value: Any) -> None:
    """Sets a variable's array without conversion or placement, which `Variable.assign` would do."""
    variable._value = value


def assign_and_place(variable: Any, value: Any) -> None:
    """Sets a variable's array, placed by the variable's layout. Shape and dtype are not checked."""
    variable._direct_assign(value)


def choose_layout(variable: Any) -> None:
    """Sets the layout of a variable without a value, if the current distribution has one for it."""
    variable._initialize_layout()


def layout_of(variable: Any) -> Any:
    """Returns a variable's layout: a `keras.distribution.TensorLayout`, a `jax.sharding.Sharding`, or None."""
    return getattr(variable, "_layout", None)


def set_layout(variable: Any, layout: Any) -> None:
    """Sets a variable's layout without moving its value."""
    variable._layout = layout


def set_path(variable: Any, path: str) -> None:
    """Sets a variable's path, by which an optimizer such as Muon may choose its update."""
    variable._path = path


@contextmanager
def shaped_as(variable: Any, shape: tuple[int, ...]) -> Generator[None]:
    """Gives a variable another shape within a ``with`` block, so that it accepts values of that shape."""
    before = variable._shape
    variable._shape = tuple(shape)
    try:
        yield
    finally:
        variable._shape = before


def trainable_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer, or the inner one of a loss-scaling optimizer, was built for."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def learning_rate_of(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate as it is stored: a variable, or a `LearningRateSchedule`."""
    return optimizer._learning_rate


def iterations_of(optimizer: Any) -> int:
    """Returns the number of calls of an optimizer's update. With gradient accumulation, `iterations` counts fewer."""
    return int(optimizer._iterations.value)
