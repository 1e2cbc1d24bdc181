"""The states of callbacks: what `BackupAndRestore` saves of the other callbacks of a ``fit``.

A callback keeps its own state through a restart if it has two methods::

    def get_state(self):
        return {"num_bad_epochs": self.num_bad_epochs, "averages": self.averages}

    def set_state(self, state):
        self.num_bad_epochs, self.averages = state["num_bad_epochs"], state["averages"]

The state is a dictionary of JSON values and arrays. Keras's own callbacks need no such methods.
"""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from lockstep.checkpoints.run_state import State
from lockstep.errors import InvalidInputError
from lockstep.upstream.keras_callbacks import own_attributes, state_names

logger = logging.getLogger(__name__)


@final
class CallbackStates:
    """The states of the callbacks of one ``fit``, by names that are the same in the next run.

    A name is the callback's class, with a number for each further callback of the same class.

    Args:
        callbacks: the callbacks, without the one that saves.

    Raises:
        InvalidInputError: a callback has only one of the two methods.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = _named(callbacks)
        self._first = {name: _attributes_of(one) for name, one in self._callbacks.items()}
        self._said: set[str] = set()
        for name, callback in self._callbacks.items():
            has = [callable(getattr(callback, method, None)) for method in ("get_state", "set_state")]
            if any(has) and not all(has):
                raise InvalidInputError(
                    f"callback {name} has one of two methods",
                    received="get_state" if has[0] else "set_state",
                    allowed="both get_state and set_state, or neither",
                )

    def capture(self) -> dict[str, State]:
        """Returns the state of each callback that has one. Logs once which state is not saved."""
        found: dict[str, State] = {}
        for name, callback in self._callbacks.items():
            if _has_methods(callback):
                state = callback.get_state()
                if not isinstance(state, Mapping):
                    raise InvalidInputError(
                        f"get_state of callback {name}", received=type(state).__name__, allowed="a dictionary"
                    )
                found[name] = state
                continue
            names = state_names(callback)
            if names:
                found[name] = {attribute: getattr(callback, attribute) for attribute in names}
            self._say_what_is_lost(name, callback)
        return found

    def restore(self, states: Mapping[str, State]) -> None:
        """Gives each callback its state. Logs which states belong to no callback of this run.

        Args:
            states: the states by the callbacks' names, as `capture` returned them.
        """
        for name, state in states.items():
            callback = self._callbacks.get(name)
            if callback is None:
                logger.warning("the checkpoint has the state of a callback %s, which this run does not have", name)
            elif _has_methods(callback):
                callback.set_state(state)
            else:
                for attribute in state_names(callback):
                    if attribute in state:
                        setattr(callback, attribute, state[attribute])

    def _say_what_is_lost(self, name: str, callback: Any) -> None:
        now, before = _attributes_of(callback), self._first[name]
        changed = sorted(key for key, value in now.items() if key not in before or before[key] != value)
        if changed and name not in self._said:
            self._said.add(name)
            logger.warning(
                "the state of callback %s is not saved (%s changed): a run that resumes begins it anew. If that "
                "matters, give it get_state(), which returns a dictionary, and set_state(state)",
                name,
                ", ".join(changed),
            )


def _named(callbacks: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for callback in callbacks:
        name = base = type(callback).__name__
        number = 1
        while name in found:
            number += 1
            name = f"{base} {number}"
        found[name] = callback
    return found


def _has_methods(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _attributes_of(callback: Any) -> dict[str, Any]:
    """Returns, for each attribute of a user's callback, a value that differs once it has changed."""
    is_ours = type(callback).__module__.partition(".")[0] == __name__.partition(".")[0]
    return {} if is_ours else {name: _outline(value) for name, value in own_attributes(callback).items()}


def _outline(value: Any) -> Any:
    # Only what is cheap to see: a list that was changed and is as long as before looks the same.
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    return id(value), len(value) if isinstance(value, list | dict | set) else None
