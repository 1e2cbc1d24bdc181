"""Whether all processes are about to run the same thing: asked before ``fit``, ``evaluate`` and ``predict``.

Processes with different models compile different programs, whose collectives then wait for each other, or mix up their
arrays. What they have is compared over the meeting's connections first, so that the difference can be named.
"""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

import keras

from lockstep.strategies.joining import current_watchdog

_NUMBER: Final = re.compile(r"_\d+(?=/|$)")
"""What Keras appends to the name of the second layer of a kind; a process that made another model before counts on."""


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
