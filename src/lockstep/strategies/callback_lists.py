"""Keras's list of callbacks: what it does after each batch when no callback asks for it.

After each batch, Keras reads the logs from the device in another thread, to pass them to callbacks. This takes longer
than the step of a small model, also if no callback has a method for the end of a batch.
"""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import keras

_CALLED: Final = {
    "on_train_batch_end": ("on_train_batch_end", "on_batch_end"),
    "on_test_batch_end": ("on_test_batch_end",),
    "on_predict_batch_end": ("on_predict_batch_end",),
}
"""The methods of callbacks that each method of a list calls, also by Keras's own ones."""


def wrap_batch_end(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of ``CallbackList`` so that it does nothing if no callback has a method of its own for it."""
    called = _CALLED[method.__name__]

    @functools.wraps(method)
    def wrapper(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if any(_has_own(callback, name) for callback in self.callbacks for name in called):
            return method(self, batch, *args, **kwargs)
        return None

    return wrapper


def _has_own(callback: Any, name: str) -> bool:
    # A callback may have the method in its class, or as an attribute of its own (`LambdaCallback`).
    found = getattr(callback, name)
    return getattr(found, "__func__", found) is not getattr(keras.callbacks.Callback, name)
