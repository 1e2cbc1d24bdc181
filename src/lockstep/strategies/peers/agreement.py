"""Whether all processes do the same thing: asked where a variable gets a value, and before ``fit`` and its kin.

Processes with different models compile different programs, whose collectives then wait for each other, or abort over
arrays of different sizes. What they have is compared over the meeting's connections first, so that the difference can
be named. A value that is the same everywhere is then placed without a collective: JAX would gather each one from all
processes to compare them.
"""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Final, cast

import jax
import keras
import numpy as np
from keras.src.backend.jax.core import JaxVariable
from keras.src.utils import jax_utils

from lockstep.strategies.peers.joining import current_watchdog

_NUMBER: Final = re.compile(r"_\d+(?=/|$)")
"""What Keras appends to the name of the second layer of a kind; a process that made another model before counts on."""


_MARK: Final = "_lockstep_replaces"


def install() -> None:
    """Has Keras's variables take their values by agreement; a second call does nothing."""
    method = JaxVariable._direct_assign
    if not hasattr(method, _MARK):
        wrapper = _agreeing(method)
        setattr(wrapper, _MARK, method)
        JaxVariable._direct_assign = wrapper


def _agreeing(direct_assign: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(direct_assign)
    def wrapper(self: Any, value: Any) -> None:
        watchdog = current_watchdog()
        sharding = getattr(self._layout, "backend_layout", self._layout)
        if watchdog is None or not _is_placed_by_all(value, sharding):
            direct_assign(self, value)
            return
        array = np.asarray(value)
        watchdog.agree(f"variable {_NUMBER.sub('', self.path)}", _describe_array(array))
        direct_assign(self, jax.make_array_from_callback(array.shape, sharding, lambda index: array[index]))

    return wrapper


def _is_placed_by_all(value: Any, sharding: Any) -> bool:
    """Whether a value that each process holds goes onto devices of several processes."""
    if not isinstance(sharding, jax.sharding.Sharding) or sharding.is_fully_addressable:
        return False
    if not isinstance(value, jax.Array) or jax_utils.is_in_jax_tracing_scope(value):
        return False
    return value.is_fully_addressable


def _describe_array(array: np.ndarray) -> list[str]:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return [f"{array.dtype} of shape {array.shape}", f"a value whose SHA-256 begins with {digest[:12]}"]


def agree_on_batch(batch: Any) -> None:
    """Checks that every process has the same whole batch, where each is to take its rows of it; blocks until all have.

    Asked of the first batch of a pass: batches that differ there come of data that was shuffled or divided by each
    process for itself, of which some rows would be trained on twice and others never.

    Does nothing in a job of one process.

    Args:
        batch: a structure of arrays, rows first; what lies on the devices of all processes already is left out.

    Raises:
        BackendError: the processes differ, or one does not come here; in every process.
    """
    watchdog = current_watchdog()
    if watchdog is None:
        return
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    arrays = [np.asarray(leaf) for leaf in leaves if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable]
    watchdog.agree(
        "the first batch",
        [line for array in arrays for line in _describe_array(array)],
        action="have every process yield the same global batches, from one seed; or divide the data by "
        "lockstep.data.Batches with the strategy's input_context, or by InputOptions with the policy OFF",
    )


def agree_on_run(model: Any, what: str) -> None:
    """Checks that every process is about to run the same method of the same model; blocks until all are.

    Does nothing in a job of one process.

    Args:
        model: the Keras model.
        what: the method, such as "fit".

    Raises:
        BackendError: the processes differ, or one does not come here; in every process.
    """
    watchdog = current_watchdog()
    if watchdog is not None:
        watchdog.agree(what, describe_model(model))


def describe_model(model: Any) -> list[str]:
    """Describes what decides a model's programs, one line each: variables, then optimizer.

    Args:
        model: the Keras model, built or not.
    """
    lines = [f"model {type(model).__name__}"]
    if model.built:
        lines += [
            f"variable {_NUMBER.sub('', variable.path)} {variable.dtype} {tuple(variable.shape)}"
            for variable in model.variables
        ]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return lines
    serialized = cast("dict[str, Any]", keras.optimizers.serialize(optimizer))
    settings = {"class": serialized["class_name"], **serialized["config"]}
    return lines + [
        f"optimizer {key} {json.dumps(value, sort_keys=True, default=str)}" for key, value in settings.items()
    ]
