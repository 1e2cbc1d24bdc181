"""The state of Keras's own callbacks: which attributes of theirs decide what they do next."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any, Final

import keras

_STATES: Final[dict[type, tuple[str, ...]]] = {
    keras.callbacks.EarlyStopping: ("best", "wait", "stopped_epoch", "best_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("best", "wait", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}
_WITHOUT_STATE: Final = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.LambdaCallback,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
)
"""Callbacks whose attributes change, but do not decide anything about the training."""


def state_names(callback: Any) -> tuple[str, ...]:
    """Returns the names of the attributes that are the state of a callback of Keras, or of a subclass; or nothing."""
    known = [name for kind, names in _STATES.items() if isinstance(callback, kind) for name in names]
    return tuple(name for name in known if hasattr(callback, name))  # some are not in every version of Keras


def own_attributes(callback: Any) -> dict[str, Any]:
    """Returns what a callback of the user keeps in attributes, by name; nothing for callbacks of Keras itself."""
    if type(callback) in (*_STATES, *_WITHOUT_STATE):
        return {}
    of_keras = {"_model", "params", "validation_data", "monitor_op", "min_delta", "_current_epoch"}
    known = of_keras | set(state_names(callback))
    return {name: value for name, value in vars(callback).items() if name not in known}


def keeps_weights(callback: Any) -> bool:
    """Whether a callback is an `EarlyStopping` that keeps the best weights, which it reads whole in each process."""
    return isinstance(callback, keras.callbacks.EarlyStopping) and bool(callback.restore_best_weights)


def has_stopped(callback: Any) -> bool:
    """Whether a callback is an `EarlyStopping` that has stopped the training. Resets that if its patience is not over.

    The patience may have been raised since.
    """
    if not isinstance(callback, keras.callbacks.EarlyStopping) or not callback.stopped_epoch:
        return False
    if callback.wait < callback.patience:
        callback.stopped_epoch = 0
    return callback.stopped_epoch > 0


def is_higher_better(model: Any, *, monitor: str, mode: str) -> bool:
    """Returns whether a metric is better when it is higher, as Keras's callbacks decide it.

    Args:
        model: the model, whose metrics are built if ``mode`` is "auto" and the metric is not a loss.
        monitor: the name of the metric.
        mode: "min", "max" or "auto".

    Raises:
        ValueError: ``mode`` is "auto", and Keras does not know the metric's direction.
    """
    probe: Any = keras.callbacks.EarlyStopping(monitor=monitor, mode=mode)
    probe.set_model(model)
    probe._set_monitor_op()
    return bool(probe._is_improvement(1.0, 0.0))
