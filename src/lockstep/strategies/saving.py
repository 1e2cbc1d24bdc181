"""Checks before the training whether a model can be saved whole, so that it does not fail after hours of training.

Keras saves a model as the configuration of its layers, and their weights. A class of the user has a configuration only
if it says how to create it again: it needs ``get_config`` if its ``__init__`` takes more than plain values.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet

import keras

from lockstep.errors import ModelError

logger = logging.getLogger(__name__)

_OBJECT: Final = re.compile(r"Object (\w+) was created")
_HELD: Final = re.compile(r"Cannot serialize object .* of type <class '([\w.<>]+)'>", re.DOTALL)
_checked: WeakSet[Any] = WeakSet()


def saving_error(model: Any) -> ModelError | None:
    """Returns the reason why a model cannot be saved whole, with advice; None if no reason is known.

    Args:
        model: a Keras model, built or not.
    """
    try:
        # Without the compile configuration, which would read the optimizer's variables.
        keras.saving.serialize_keras_object(model.get_config())
    except NotImplementedError as error:
        found = _OBJECT.search(str(error))
        name = type(model).__name__ if found is None else found[1]
        return ModelError(
            f"model {model.name} cannot be saved: class {name} has no get_config() that describes its arguments",
            action=f"put @keras.saving.register_keras_serializable() above class {name}, and into it "
            "def get_config(self): return {**super().get_config(), ...} with each argument of __init__; "
            "or save its weights alone",
        )
    except TypeError as error:
        held = _HELD.search(str(error))
        if held is None:
            return None
        kind = held[1].rpartition(".")[2]
        return ModelError(
            f"model {model.name} cannot be saved: a get_config() in it gives a {kind}, which Keras cannot write",
            allowed="numbers, text, lists and dictionaries of them, layers, and objects with a get_config()",
            action=f"give get_config() what the {kind} is made of, and make it in __init__; or save its weights alone",
        )
    except Exception:  # for example, a user's get_config that needs values from the training
        return None
    return None


def check_saving(model: Any, arguments: Mapping[str, Any]) -> None:
    """Warns, once for each model, that the model cannot be saved. Raises an error if a callback of ``fit`` saves it.

    Args:
        model: the model that is to be trained.
        arguments: the arguments of ``fit``, by name.

    Raises:
        ModelError: the model cannot be saved, and a ``ModelCheckpoint`` of the whole model is among the callbacks.
    """
    given = arguments.get("callbacks")
    callbacks = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else keras.tree.flatten(given or [])
    saves = any(
        isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only
        for callback in callbacks
    )
    if model in _checked and not saves:
        return
    _checked.add(model)
    error = saving_error(model)
    if error is None:
        return
    if saves:
        raise error
    logger.warning("%s", error)
