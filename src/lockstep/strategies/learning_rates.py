"""Learning rates for larger batches: scaled by a rule, with a warm-up, as a schedule for Keras's optimizers."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import math
from typing import Any, Final, Literal, TypeAlias, final

import keras
from keras import ops

from lockstep.errors import InvalidInputError

ScalingRule: TypeAlias = Literal["linear", "square_root"]
"""How the learning rate grows with the batch: "linear" for SGD, "square_root" for Adam, AdamW and LAMB."""

RULES: Final = ("linear", "square_root")
WARMUP_STARTS: Final = ("reference", "zero")


def scaling_factor(*, batch_size: int, reference_batch_size: int, rule: ScalingRule = "linear") -> float:
    """Returns the number by which a learning rate is multiplied when the batch changes.

    With k times the batch, it is k for "linear" (Goyal et al., "Accurate, Large Minibatch SGD", 2017), and the square
    root of k for "square_root" (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014;
    Hoffer et al., "Train longer, generalize better", 2017; for Adam: Malladi et al., 2022).

    Args:
        batch_size: the examples of an update, over all replicas, and over all batches whose gradients are accumulated.
        reference_batch_size: the examples of an update for which the learning rate was chosen.
        rule: "linear" or "square_root".

    Raises:
        InvalidInputError: a batch size is not positive, or there is no such rule.
    """
    for name, size in (("batch_size", batch_size), ("reference_batch_size", reference_batch_size)):
        _check_count(name, size, least=1)
    if rule not in RULES:
        raise InvalidInputError("a rule for the learning rate", received=rule, allowed=RULES)
    ratio = batch_size / reference_batch_size
    return ratio if rule == "linear" else math.sqrt(ratio)


@final
@keras.saving.register_keras_serializable(package="lockstep")
class ScaledLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that was chosen for one batch size, scaled to another one, with a linear warm-up.

    During the first ``warmup_steps`` updates, the rate grows linearly from the reference rate (or from zero) to the
    scaled one: the "gradual warmup" of Goyal et al., 2017. Then it is the scaled rate.

    Pass it to any Keras optimizer as ``learning_rate``. It is saved with the model.

    Args:
        learning_rate: the rate for the reference batch size: a number, or a schedule of Keras. The steps of the
            schedule are those of the training with the larger batch, of which an epoch has fewer.
        batch_size: the examples of a batch, over all replicas: the ``batch_size`` of ``fit``.
        reference_batch_size: the examples of a batch for which the learning rate was chosen.
        rule: how the rate grows with the batch: "linear" or "square_root"; see `scaling_factor`.
        warmup_steps: the number of updates until the rate is the scaled one; 0 for no warm-up.
        warmup_start: the rate of the first update: "reference" for the reference rate, or "zero".
        accumulation_steps: the optimizer's ``gradient_accumulation_steps``; 1 if it has none. An update has as many
            batches. Keras gives schedules the number of batches, and this one counts updates.
        name: the name of the schedule.

    Raises:
        InvalidInputError: a number is not positive, or there is no such rule or start.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        batch_size: int,
        reference_batch_size: int,
        rule: ScalingRule = "linear",
        warmup_steps: int = 0,
        warmup_start: Literal["reference", "zero"] = "reference",
        accumulation_steps: int = 1,
        name: str = "ScaledLearningRate",
    ) -> None:
        super().__init__()
        is_schedule = isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule)
        if not is_schedule and not (isinstance(learning_rate, int | float) and learning_rate > 0):
            raise InvalidInputError(
                "a learning rate", received=learning_rate, allowed="a positive number, or a LearningRateSchedule"
            )
        _check_count("batch_size", batch_size, least=1)
        _check_count("warmup_steps", warmup_steps, least=0)
        _check_count("accumulation_steps", accumulation_steps, least=1)
        if warmup_start not in WARMUP_STARTS:
            raise InvalidInputError("warmup_start", received=warmup_start, allowed=WARMUP_STARTS)
        self.factor: Final = scaling_factor(
            batch_size=batch_size * accumulation_steps, reference_batch_size=reference_batch_size, rule=rule
        )
        self.learning_rate: Final = learning_rate
        self.warmup_steps: Final = warmup_steps
        self.accumulation_steps: Final = accumulation_steps
        self.name: Final = name
        self._start = 1.0 if warmup_start == "reference" else 0.0
        self._config = {
            "batch_size": batch_size,
            "reference_batch_size": reference_batch_size,
            "rule": rule,
            "warmup_steps": warmup_steps,
            "warmup_start": warmup_start,
            "accumulation_steps": accumulation_steps,
            "name": name,
        }

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate of a step, a float32 scalar.

        Args:
            step: the number of batches that the optimizer was applied to before: an integer, or an integer scalar.
        """
        updates = ops.floor_divide(step, self.accumulation_steps)
        rate = self.learning_rate if not callable(self.learning_rate) else self.learning_rate(updates)
        factor: Any = self.factor
        if self.warmup_steps:
            progress = ops.minimum(ops.divide(updates, self.warmup_steps), 1.0)
            factor = ops.add(self._start, ops.multiply(self.factor - self._start, progress))
        return ops.cast(ops.multiply(rate, factor), "float32")

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, from which `from_config` makes the schedule again."""
        rate = self.learning_rate
        return {
            "learning_rate": keras.optimizers.schedules.serialize(rate) if callable(rate) else rate,
            **self._config,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledLearningRate:
        """Makes a schedule from the result of `get_config`.

        Args:
            config: the arguments.
        """
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
        return cls(**{**config, "learning_rate": rate})


def _check_count(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInputError(name, received=value, allowed=f"an integer, {least} or more")
