"""Every optimizer that parameter servers run, each made anew, and those of which workers do a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from lockstep.parameter_server.optimizers import OptimizerSpec, describe_optimizer
from lockstep.training import ScaledLearningRate

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "scaled_rate": lambda: keras.optimizers.Adam(
        ScaledLearningRate(0.01, batch_size=32, reference_batch_size=8, rule="square_root", warmup_steps=3)
    ),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.5),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # since Keras 3.14
    OPTIMIZERS["schedule_free"] = lambda: keras.optimizers.ScheduleFreeAdamW(0.01, warmup_steps=3, weight_decay=0.01)

DONE_BY_WORKERS: dict[str, Any] = {
    "scaled": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=1024.0),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "scaled_global_clipnorm": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=1024.0, global_clipnorm=0.5),
}


def describe_built(optimizer: Any, variables: Sequence[Any]) -> OptimizerSpec:
    """Builds an optimizer, as every optimizer of a strategy is before servers are set up, and describes it."""
    optimizer.build(variables)
    return describe_optimizer(optimizer, variables)
