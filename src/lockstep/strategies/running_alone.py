"""Runs a model in one process alone, while this process trains another model with its peers.

For example, a callback of the chief may clone the model that is trained, and evaluate the clone. The other processes
are busy with their next step, so a program over all devices would wait for them forever. Such a model therefore runs on
a device of this process. If every process calls the same callback, each of them gets the same result.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.peers import agreement
from lockstep.upstream.keras_variables import (
    assign_and_place,
    layout_of,
    set_layout,
    set_stored_value,
    stored_value,
)

_FUNCTIONS = ("train_function", "test_function", "predict_function")


def can_run_alone(model: Any) -> bool:
    """Whether this process holds whole copies of a model's variables, and no program of all processes has used them.

    Args:
        model: a Keras model.
    """
    variables = agreement.variables_of(model)
    return not any(map(agreement.is_shared, variables)) and all(
        value is not None and (value.is_fully_addressable or value.is_fully_replicated)
        for value in map(stored_value, variables)
    )


def is_elsewhere(variable: Any, layout: AbstractLayout) -> bool:
    """Whether a variable is on other devices than those on which a layout keeps variables."""
    value = getattr(variable, "value", None)
    return isinstance(value, jax.Array) and value.sharding.device_set != set(layout.state_devices)


@contextmanager
def run_without_strategy(model: Any, layout: AbstractLayout | None) -> Generator[None]:
    """Leaves the strategy within a ``with`` block, and moves a model's variables to a device of this process.

    Args:
        model: a model of which this process holds whole copies.
        layout: the current layout; None if it was left already. Variables that were where the layout keeps variables
            are moved back at the end. Variables that were created within the block are moved there too.
    """
    before = [variable for variable in agreement.variables_of(model) if layout and not is_elsewhere(variable, layout)]
    if layout is None or not before:
        with _without_strategy(), _same_draws():
            yield
        return
    layouts = {id(variable): layout_of(variable) for variable in before}
    others = {id(variable) for variable in agreement.variables_of(model)} - set(layouts)
    for variable in before:
        set_layout(variable, None)
        set_stored_value(variable, stored_value(variable).addressable_data(0))
    _forget_functions(model)
    try:
        with _without_strategy(), _same_draws():
            yield
    finally:
        _forget_functions(model)
        for variable in agreement.variables_of(model):
            if id(variable) not in others:
                value = np.asarray(stored_value(variable))
                set_layout(variable, layouts.get(id(variable)) or layout.get_variable_layout(variable))
                assign_and_place(variable, jnp.asarray(value))


@contextmanager
def _without_strategy() -> Generator[None]:
    current = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(current)


@contextmanager
def _same_draws() -> Generator[None]:
    """Restores the random generators after the block, because the other processes have not drawn its numbers.

    Otherwise, this process would order the rows of the common training differently than the others.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _forget_functions(model: Any) -> None:
    """Makes Keras compile a model's steps again, because they were compiled for the variables' old devices."""
    for name in _FUNCTIONS:
        setattr(model, name, None)
