"""Parts of Keras's variables, optimizers and random generators that no public property shows."""

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
    """Returns the array that a variable holds, whatever scope is entered; None where a loop of Keras has taken it."""
    return variable._value


def stored_dtype(variable: Any) -> str:
    """Returns the dtype of what a variable holds; `Variable.dtype` is another one within an autocast scope."""
    return variable._dtype


def set_stored_value(variable: Any, value: Any) -> None:
    """Gives a variable an array as it is: `Variable.assign` would convert it and place it by the layout again."""
    variable._value = value


def assign_and_place(variable: Any, value: Any) -> None:
    """Gives a variable an array, placed by the variable's layout; its shape and dtype are not checked."""
    variable._direct_assign(value)


def layout_of(variable: Any) -> Any:
    """Returns a variable's layout: a `keras.distribution.TensorLayout`, a `jax.sharding.Sharding`, or None."""
    return getattr(variable, "_layout", None)


def set_layout(variable: Any, layout: Any) -> None:
    """Sets a variable's layout; its value stays where it is."""
    variable._layout = layout


def set_path(variable: Any, path: str) -> None:
    """Sets a variable's path: an optimizer may decide by it, as Muon does."""
    variable._path = path


@contextmanager
def shaped_as(variable: Any, shape: tuple[int, ...]) -> Generator[None]:
    """Within, a variable has another shape, and so takes values of that shape."""
    before = variable._shape
    variable._shape = tuple(shape)
    try:
        yield
    finally:
        variable._shape = before


def trainable_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer was built for, in its order; of a loss-scaling one the inner one's."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def learning_rate_of(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate as it keeps it: a variable, or a `LearningRateSchedule`."""
    return optimizer._learning_rate


def iterations_of(optimizer: Any) -> int:
    """Returns how many updates an optimizer has applied; `iterations` of a gradient-accumulating one counts fewer."""
    return int(optimizer._iterations.value)
