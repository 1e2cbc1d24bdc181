"""What a server needs to know of a Keras optimizer: its settings, and which variables it must see whole."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import keras
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.row_optimizers import LazyAdam, RowOptimizer, RowSGD, RowwiseAdagrad
from lockstep.strategies.learning_rates import ScaledLearningRate

_LOOKS_AT_WHOLE_VARIABLES: Final = (keras.optimizers.Lamb, keras.optimizers.Adafactor, keras.optimizers.Muon)

_OWN_OBJECTS: Final = {"ScaledLearningRate": ScaledLearningRate}
"""What a server's process knows although its script has not imported it yet."""

_OF_SEVERAL: Final = (keras.optimizers.MultiOptimizer,) if hasattr(keras.optimizers, "MultiOptimizer") else ()
"""The optimizers that consist of several. Keras 3.13 has none."""

_DONE_BY_WORKERS: Final = ("loss_scale_factor", "global_clipnorm")
"""What a worker does to the gradients of a step, in this order, because it has all of them, including those of rows."""

_NOT_FOR_ROWS: Final = ("momentum", "amsgrad", "clipvalue", "clipnorm", "gradient_accumulation_steps", "use_ema")
"""Settings of Keras optimizers that no row optimizer has."""


@final
@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer as it is sent to the servers: only settings, no code.

    Attributes:
        config: the result of ``keras.optimizers.serialize``, without the settings that workers apply to gradients: they
            undo the scaling of the loss, and clip by the norm of all gradients.
        decays: for each variable, whether weight decay applies to it.
        constraints: for each variable, the result of ``keras.constraints.serialize``; None if it has no constraint.
    """

    config: dict[str, Any]
    decays: tuple[bool, ...]
    constraints: tuple[dict[str, Any] | None, ...]


def describe_optimizer(optimizer: Any, variables: Sequence[Any]) -> OptimizerSpec:
    """Returns what the servers need to know of an optimizer.

    Args:
        optimizer: a Keras optimizer that is built. Keras 3.16 knows only then which variables have a weight decay.
        variables: the variables that it trains.

    Raises:
        InvalidInputError: servers cannot run the optimizer.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise InvalidInputError(
            "a loss-scaling optimizer needs all gradients of a step, but a parameter server has only some",
            received=f"LossScaleOptimizer around {type(optimizer.inner_optimizer).__name__}",
            action="use the policy mixed_bfloat16, which needs no scaling; or a fixed scale: give the optimizer "
            "loss_scale_factor, and compile auto_scale_loss=False",
        )
    odd = next((one.path for one in variables if getattr(one, "overwrite_with_gradient", False)), None)
    if odd is not None:
        raise InvalidInputError(
            "parameter servers apply gradients, but a float8 layer's are new values of its scales",
            received=odd,
            action='train without model.quantize("float8"); the policy mixed_bfloat16 is supported',
        )
    if isinstance(optimizer, _OF_SEVERAL):
        raise InvalidInputError(
            "MultiOptimizer is not supported by parameter servers",
            received="MultiOptimizer",
            allowed="one optimizer; in a loop with ClusterCoordinator, one for each part of the model",
        )
    if optimizer.global_clipnorm and optimizer.gradient_accumulation_steps:
        raise InvalidInputError(
            "an optimizer clips the norm of all gradients after it has added several steps' up, which no one of the "
            "parameter servers has",
            received="global_clipnorm and gradient_accumulation_steps",
            allowed="one of the two, or clipnorm",
        )
    config: Any = keras.optimizers.serialize(optimizer)
    config["config"] |= dict.fromkeys(_DONE_BY_WORKERS)
    config["config"].pop("name", None)  # it has a number that each process counts for itself
    return OptimizerSpec(
        config=config,
        decays=tuple(bool(optimizer._use_weight_decay(variable)) for variable in variables),
        constraints=tuple(_serialize_constraint(variable.constraint) for variable in variables),
    )


def _serialize_constraint(constraint: Any) -> Any:
    return None if constraint is None else keras.constraints.serialize(constraint)


def needs_whole(optimizer: Any, variable: Any) -> bool:
    """Whether a variable must not be cut, because its optimizer or its constraint needs all of its values."""
    return (
        isinstance(optimizer, _LOOKS_AT_WHOLE_VARIABLES) or bool(optimizer.clipnorm) or variable.constraint is not None
    )


def nearest_row_optimizer(optimizer: Any, *, layer: str) -> RowOptimizer:
    """Returns the row optimizer that is nearest to a model's optimizer.

    Args:
        optimizer: the model's optimizer; None if none trains the rows.
        layer: the path of the embedding, for messages.

    Raises:
        InvalidInputError: no row optimizer is near enough.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    has_rate = isinstance(rate, keras.Variable)
    odd = [name for name in _NOT_FOR_ROWS if getattr(optimizer, name, None)]
    if has_rate and not odd:
        learning_rate = float(np.asarray(rate.value))
        if type(optimizer) is keras.optimizers.SGD:
            return RowSGD(learning_rate=learning_rate)
        if type(optimizer) is keras.optimizers.Adagrad:
            return RowwiseAdagrad(
                learning_rate=learning_rate,
                initial_accumulator=optimizer.initial_accumulator_value,
                epsilon=optimizer.epsilon,
            )
        if type(optimizer) in (keras.optimizers.Adam, keras.optimizers.AdamW):
            return LazyAdam(
                learning_rate=learning_rate,
                beta_1=optimizer.beta_1,
                beta_2=optimizer.beta_2,
                epsilon=optimizer.epsilon,
            )
    settings = ", ".join([*odd, *([] if has_rate else ["a schedule"])])
    raise InvalidInputError(
        f"embedding {layer} has no optimizer of its own, and no row optimizer is similar to the model's",
        received="none" if optimizer is None else type(optimizer).__name__ + (f" with {settings}" if settings else ""),
        allowed=f"SGD, Adagrad, Adam or AdamW, with one learning rate, and without {', '.join(_NOT_FOR_ROWS)}",
        action='give the layer one: optimizer="adagrad", or lockstep.parameter_server.row_optimizer(...)',
    )


def build_optimizer(spec: OptimizerSpec, variables: Sequence[Any]) -> Any:
    """Builds an optimizer from its description.

    Args:
        spec: the description.
        variables: variables that stand for those of the description, in the same order.

    Raises:
        InvalidInputError: this process does not know the optimizer's class.
    """
    try:
        # Not `keras.optimizers.deserialize`: it returns a string instead of Lamb.
        optimizer: Any = keras.saving.deserialize_keras_object(
            copy.deepcopy(spec.config),  # Keras modifies it
            custom_objects=_OWN_OBJECTS,
        )
    except (TypeError, ValueError, ImportError) as error:
        raise InvalidInputError(
            "an optimizer that this process does not know",
            received=spec.config.get("class_name"),
            action="register it with keras.saving.register_keras_serializable before the strategy is made",
        ) from error
    plain = [variable for variable, decays in zip(variables, spec.decays, strict=True) if not decays]
    if plain:
        optimizer.exclude_from_weight_decay(var_list=plain)
    optimizer.build(list(variables))
    return optimizer
