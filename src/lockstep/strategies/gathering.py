"""Gathers variables that are divided over the devices of several processes, so that one process can save them."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lockstep.upstream.keras_variables import set_stored_value, stored_value


def whole_value(value: Any) -> np.ndarray[Any, Any]:
    """Returns a copy of a whole array in host memory.

    If parts of the array are on other processes' devices, every process of the job must call this, in the same order.
    The call then waits for the others.

    Args:
        value: a JAX array, or anything that NumPy can convert to an array.
    """
    if _is_scattered(value):
        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.array(value)


@contextmanager
def whole_variables(model: Any) -> Generator[None]:
    """Lets this process read every variable of a model within the block, as ``model.save`` does.

    The block must not change the variables. Every process of the job must enter it. In a job of one process, or if each
    process holds whole copies, it does nothing.

    Args:
        model: a Keras model. The variables of its optimizer are included.
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    scattered = {id(variable): variable for variable in variables if _is_scattered(stored_value(variable))}
    kept = {key: stored_value(variable) for key, variable in scattered.items()}
    try:
        for variable in scattered.values():
            set_stored_value(variable, whole_value(stored_value(variable)))
        yield
    finally:
        for key, variable in scattered.items():
            set_stored_value(variable, kept[key])


def _is_scattered(value: Any) -> bool:
    return isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated
