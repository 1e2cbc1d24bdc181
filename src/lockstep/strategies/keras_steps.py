"""Keras's own steps as functions of the batch only, for ``super().train_step(data)`` in ``train_step(self, data)``.

Keras's steps on JAX take and return the whole state: ``train_step(self, state, data)``. A step that takes only the
batch reads and writes the model's variables directly, and so do the steps of this module. They compute the same.
"""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import keras

from lockstep.strategies.loops.gradients import value_and_grad
from lockstep.upstream.keras_trainer import compute_loss, loss_tracker_of, takes_training


def wrap_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps one of Keras's own steps so that it can also be called with only a batch.

    Args:
        step: ``train_step``, ``test_step`` or ``predict_step`` of Keras's JAX trainer.
    """
    of_batch = _STEPS[step.__name__]

    @functools.wraps(step)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if len(given) == 1 and "state" not in kwargs:
            return of_batch(self, given[0])
        return step(self, *args, **kwargs)

    return wrapper


def _train(model: Any, data: Any) -> Any:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

    def loss_fn() -> Any:
        predictions, loss = _forward(model, x, y, sample_weight, training=True)
        return model.optimizer.scale_loss(loss), (predictions, loss)

    _call_once(model, x)
    variables = model.trainable_variables
    (_, (predictions, loss)), gradients = value_and_grad(loss_fn, variables, has_aux=True)
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return _results(model, loss, x, y, predictions, sample_weight)


def _test(model: Any, data: Any) -> Any:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    predictions, loss = _forward(model, x, y, sample_weight, training=False)
    return _results(model, loss, x, y, predictions, sample_weight)


def _predict(model: Any, data: Any) -> Any:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return _call(model, x, training=False)


def _call(model: Any, x: Any, *, training: bool) -> Any:
    return model(x, training=training) if takes_training(model) else model(x)


def _call_once(model: Any, x: Any) -> None:
    if not model.built:  # an unbuilt model has no variables to differentiate with respect to
        _call(model, x, training=False)


def _forward(model: Any, x: Any, y: Any, sample_weight: Any, *, training: bool) -> tuple[Any, Any]:
    predictions = _call(model, x, training=training)
    loss = compute_loss(model, x=x, y=y, y_pred=predictions, sample_weight=sample_weight, training=training)
    return predictions, loss


def _results(model: Any, loss: Any, x: Any, y: Any, predictions: Any, sample_weight: Any) -> Any:
    num_rows = next(part for part in keras.tree.flatten(x) if part is not None).shape[0]
    loss_tracker_of(model).update_state(loss, sample_weight=num_rows)
    return model.compute_metrics(x, y, predictions, sample_weight)


_STEPS: Final = {"train_step": _train, "test_step": _test, "predict_step": _predict}
