"""Whether all processes do the same thing: asked before they run a program together, and when its variables change.

Processes with different models compile different programs, whose collectives then wait for each other, or abort over
arrays of different sizes. What they have is compared over the meeting's connections first, so that the difference can
be named.

A variable is its process's own until a program that all processes run uses it: `model.save` makes an optimizer, a
callback of one process a model, and the others need not know. What values such variables were given is noted, and
compared when that first program comes. From then on the processes share the variable, and each new value from the host
is compared at once.

A value is placed without a collective: JAX would gather each one from all processes to compare them.
"""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import hashlib
import json
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import jax
import keras
import numpy as np

from lockstep.strategies.peers.watchdog import current_watchdog
from lockstep.upstream.keras_variables import is_in_jax_tracing_scope, layout_of

_NUMBER: Final = re.compile(r"_\d+(?=[/_]|$)")
"""What Keras appends to the name of the second layer of a kind; a process that made another model before counts on.

In the names of an optimizer's variables a layer's path is one word: ``sequential_1_dense_2_kernel_momentum``.
"""


# By id: Keras's variables compare their values when they are asked whether they are equal.
_shared: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Variables that a program of all processes has used."""

_own: dict[int, tuple[weakref.ref[Any], list[str]]] = {}
"""Variables that none has used yet, and the last value that each was given here."""


def agreeing(direct_assign: Callable[..., None]) -> Callable[..., None]:
    """Has a variable over several processes take its values by agreement."""

    @functools.wraps(direct_assign)
    def wrapper(self: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        watchdog = current_watchdog()
        sharding: Any = None if watchdog is None else _sharding_of(self)
        if watchdog is None or not _is_placed_by_all(value, sharding):
            direct_assign(self, value, *args, **kwargs)
            return
        array = np.asarray(value)
        described = _describe_array(array)
        if is_shared(self):
            watchdog.agree(_name_of(self), described)
        else:
            key = id(self)
            _own[key] = weakref.ref(self, lambda _: _own.pop(key, None)), described
        direct_assign(self, jax.make_array_from_callback(array.shape, sharding, lambda index: array[index]))

    return wrapper


def _sharding_of(variable: Any) -> Any:
    layout = layout_of(variable)
    return getattr(layout, "backend_layout", layout)


def is_shared(variable: Any) -> bool:
    """Whether a program of all processes has used a variable."""
    return _shared.get(id(variable)) is variable


def _name_of(variable: Any) -> str:
    return f"variable {_NUMBER.sub('', variable.path)}"


def _is_over_processes(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_addressable


def _is_placed_by_all(value: Any, sharding: Any) -> bool:
    """Whether a value that each process holds goes onto devices of several processes."""
    if not _is_over_processes(sharding):
        return False
    if not isinstance(value, jax.Array) or is_in_jax_tracing_scope(value):
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
    if current_watchdog() is not None:
        _agree(what, variables_of(model), describe_model(model))


def agree_on_variables(variables: Iterable[Any], what: str, *, is_certain: bool = False) -> None:
    """Checks that every process has given the variables of a program the same values; they are shared from then on.

    Does nothing in a job of one process, and where all of these variables are shared already.

    Args:
        variables: what a program of all processes is about to use, in the same order in each of them.
        what: the program.
        is_certain: whether every process is known to call this now; a process with other variables is then named at
            once.

    Raises:
        BackendError: the processes differ, or one does not come here; in every process.
    """
    variables = list(variables)
    if current_watchdog() is not None and (is_certain or any(map(_is_new, variables))):
        _agree(f"the variables of {what}", variables, [])


def variables_of(model: Any) -> list[Any]:
    """Returns all variables that a model's training uses, its optimizer's included."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer is not None else ())]


def _agree(what: str, variables: Iterable[Any], entries: Sequence[str]) -> None:
    """Compares what a program is and the variables that it is the first one to use."""
    watchdog = current_watchdog()
    assert watchdog is not None, "asked of a job of several processes"
    new = {id(variable): variable for variable in variables if _is_new(variable)}
    described = {key: _describe_own(variable) for key, variable in new.items()}
    lines = [f"{_name_of(new[key])} {line}" for key, about in described.items() for line in about]
    digest = hashlib.sha256("\n".join([*entries, *lines]).encode()).hexdigest()
    if watchdog.compare(what, [digest]) is not None:
        # Every process comes here. One after the other, so that the first difference is named by its variable.
        for key, about in described.items():
            watchdog.agree(
                _name_of(new[key]),
                about,
                action="run the same program in every process; one that has made layers by itself has drawn random "
                "numbers: have every process call keras.utils.set_random_seed before it makes the model",
            )
        watchdog.agree(what, entries)
    for key, variable in new.items():
        _shared[key] = variable
        _own.pop(key, None)


def _is_new(variable: Any) -> bool:
    return _is_over_processes(_sharding_of(variable)) and not is_shared(variable)


def _describe_own(variable: Any) -> list[str]:
    reference, described = _own.get(id(variable), (None, None))
    if reference is not None and described is not None and reference() is variable:
        return described
    return [f"{variable.dtype} of shape {tuple(variable.shape)}"]  # made by a program, or copied


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
    settings = _without_numbers({"class": serialized["class_name"], **serialized["config"]})
    return lines + [
        f"optimizer {key} {json.dumps(value, sort_keys=True, default=str)}" for key, value in settings.items()
    ]


def _without_numbers(settings: Any) -> Any:
    """Takes from each name in an optimizer's settings what Keras appends to the second one of a kind."""
    if isinstance(settings, list):
        return [_without_numbers(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    return {
        key: _NUMBER.sub("", value) if key == "name" and isinstance(value, str) else _without_numbers(value)
        for key, value in settings.items()
    }
