"""A model that one process has for itself, run by that process alone while it trains another one with its peers.

A callback of the chief may build a model, clone the one that is trained, and evaluate it: the other processes are busy
with their next step, and a program over all devices would wait for them for ever. So such a model is run on a device of
this process. Where every process calls the same callback, each of them gets the same result.
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
    """Whether a variable lies on other devices than those that a layout keeps variables on."""
    value = getattr(variable, "value", None)
    return isinstance(value, jax.Array) and value.sharding.device_set != set(layout.state_devices)


@contextmanager
def alone(model: Any, layout: AbstractLayout | None) -> Generator[None]:
    """Within, no strategy is current and a model's variables lie on a device of this process.

    Args:
        model: a model of which this process holds whole copies.
        layout: the current one, None where it is left already. What lies where it keeps variables is put back there in
            the end, and what was made within is put there too.
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
    """Puts the random generators back: what was drawn for this run, the other processes have not drawn.

    The model that all of them train would get its rows in another order here.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _forget_functions(model: Any) -> None:
    """Has Keras compile a model's steps anew: they are for where the variables lay."""
    for name in _FUNCTIONS:
        setattr(model, name, None)
