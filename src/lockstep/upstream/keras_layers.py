"""Keras's layers: all of a model, calls of them, the masks of their outputs, and the losses that they add."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

__all__ = ["get_keras_mask", "layers_of", "note_loss", "set_keras_mask", "wrapped_calls"]


def layers_of(model: Any) -> list[Any]:
    """Returns all layers of a model, those within other layers too, each once.

    Args:
        model: a built model.
    """
    found = {id(layer): layer for layer in model._flatten_layers(include_self=False, recursive=True)}
    return list(found.values())


@contextmanager
def wrapped_calls(
    layers: Sequence[Any], wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]
) -> Generator[None]:
    """Wraps the ``call`` of layers within a ``with`` block. Keras's own ``__call__`` uses the wrapped one.

    Args:
        layers: the layers.
        wrap: takes a layer and its ``call``, and returns the function to call instead.
    """
    before = {id(layer): layer.__dict__.get("call") for layer in layers}
    for layer in layers:
        layer.__dict__["call"] = wrap(layer, layer.call)  # not by `setattr`, where Keras would track it
    try:
        yield
    finally:
        for layer in layers:
            kept = before[id(layer)]
            if kept is None:
                del layer.__dict__["call"]
            else:
                layer.__dict__["call"] = kept


def note_loss(layer: Any, loss: Any, *, replaces: Any) -> None:
    """Makes a layer, or the layer within it that added a loss, know the loss by another value.

    Args:
        layer: the layer.
        loss: the value that the current scope has of the loss.
        replaces: the value that was added.
    """
    for one in layer._flatten_layers():
        if id(replaces) in one._loss_ids:
            one._loss_ids.remove(id(replaces))  # another loss may have this id soon
            one._loss_ids.add(id(loss))
