"""Checks that all processes do the same: before they run a program together, and when its variables are assigned.

Processes with different models compile different programs, whose collectives then wait for each other forever, or abort
because arrays differ in size. So the processes first compare what they have over the meeting's connections, and the
error names the difference.

A variable belongs to its process alone until a program that all processes run uses it. For example, `model.save`
creates an optimizer, or a callback of one process creates a model, and the other processes need not know. The values
that such variables are given are recorded, and compared when the first common program uses the variables. From then on
the variable is shared, and each new value from the host is compared at once.

A value is placed without a collective. JAX itself would gather every value from all processes to compare them.
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
"""The number that Keras appends to the names of further layers of a kind.

It differs between processes if one of them has created another model before. In the names of an optimizer's variables,
a layer's path is one word: ``sequential_1_dense_2_kernel_momentum``.
"""


# By id, because Keras's variables compare their values in `==`.
_shared: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The variables that a program of all processes has used."""

_own: dict[int, tuple[weakref.ref[Any], list[str]]] = {}
"""The variables that no such program has used yet, each with a description of the last value assigned to it here."""


def wrap_direct_assign(direct_assign: Callable[..., None]) -> Callable[..., None]:
    """Wraps Keras's assignment so that the processes compare the values of variables that they share."""

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
    """Whether a value that each process holds is to be placed on devices of several processes."""
    if not _is_over_processes(sharding):
        return False
    if not isinstance(value, jax.Array) or is_in_jax_tracing_scope(value):
        return False
    return value.is_fully_addressable


def _describe_array(array: np.ndarray) -> list[str]:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return [f"{array.dtype} of shape {array.shape}", f"a value whose SHA-256 begins with {digest[:12]}"]


def agree_on_batch(batch: Any) -> None:
    """Checks that every process has the same whole batch, before each takes its rows of it.

    Called for the first batch of a pass. If the batches differ, each process has shuffled or divided the data for
    itself; some rows would be trained on twice, and others never.

    Blocks until every process has called it. Does nothing in a job of one process.

    Args:
        batch: a structure of arrays whose first dim is the rows. Arrays that are on the devices of all processes
            already are not compared.

    Raises:
        BackendError: the processes differ, or one of them does not call this. It is raised in every process.
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
    """Checks that every process is about to run the same method of the same model.

    Blocks until every process has called it. Does nothing in a job of one process.

    Args:
        model: the Keras model.
        what: the method, such as "fit".

    Raises:
        BackendError: the processes differ, or one of them does not call this. It is raised in every process.
    """
    if current_watchdog() is not None:
        _agree(what, variables_of(model), describe_model(model))


def agree_on_variables(variables: Iterable[Any], what: str, *, is_certain: bool = False) -> None:
    """Checks that every process has given the variables of a program the same values. They are shared from then on.

    Blocks until every process has called it. Does nothing in a job of one process, or if all of these variables are
    shared already.

    Args:
        variables: the variables that a program of all processes is about to use, in the same order in each process.
        what: the name of the program.
        is_certain: whether every process is known to call this now. The check then runs even if this process has no new
            variables, so a process with other variables is reported at once.

    Raises:
        BackendError: the processes differ, or one of them does not call this. It is raised in every process.
    """
    variables = list(variables)
    if current_watchdog() is not None and (is_certain or any(map(_is_new, variables))):
        _agree(f"the variables of {what}", variables, [])


def variables_of(model: Any) -> list[Any]:
    """Returns all variables that a model's training uses, including its optimizer's."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer is not None else ())]


def _agree(what: str, variables: Iterable[Any], entries: Sequence[str]) -> None:
    """Compares the descriptions of a program, and the variables that this program is the first one to use."""
    watchdog = current_watchdog()
    assert watchdog is not None, "asked of a job of several processes"
    new = {id(variable): variable for variable in variables if _is_new(variable)}
    described = {key: _describe_own(variable) for key, variable in new.items()}
    lines = [f"{_name_of(new[key])} {line}" for key, about in described.items() for line in about]
    digest = hashlib.sha256("\n".join([*entries, *lines]).encode()).hexdigest()
    if watchdog.compare(what, [digest]) is not None:
        # Every process gets here. Compared one by one, so that the error names the first variable that differs.
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
    return [f"{variable.dtype} of shape {tuple(variable.shape)}"]  # its value came from a program, or was copied


def describe_model(model: Any) -> list[str]:
    """Describes what determines a model's programs: a line for each variable, then for each setting of the optimizer.

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
    """Removes from the names in an optimizer's settings the numbers that Keras appends to them."""
    if isinstance(settings, list):
        return [_without_numbers(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    return {
        key: _NUMBER.sub("", value) if key == "name" and isinstance(value, str) else _without_numbers(value)
        for key, value in settings.items()
    }
