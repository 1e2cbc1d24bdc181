"""Checks the arguments of ``fit``, ``evaluate`` and ``predict`` that the data makes ineffective, and rejects them.

If the data is an adapter, Keras silently ignores the other arguments about rows: ``y``, ``sample_weight``,
``batch_size`` and ``class_weight`` would have no effect.
"""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sized
from numbers import Real
from typing import Any, Final, cast, final

import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies.input import GlobalBatches
from lockstep.strategies.loops.replica import PerReplica
from lockstep.upstream.keras_data import (
    DataAdapter,
    class_weight_to_sample_weights,
    is_grain_dataset,
    is_tf_dataset,
    is_torch_dataloader,
)

_INSTEAD: Final = {
    "y": "have each batch hold its targets: (x, y)",
    "sample_weight": "have each batch hold its weights: (x, y, sample_weight)",
    "batch_size": "choose the size of batches where the data is made",
}
"""What to do instead of each argument that describes rows. Data that comes in batches has this in its batches."""


def comes_in_batches(data: Any) -> bool:
    """Returns whether the data yields batches, as everything does that ``fit`` takes except arrays."""
    if isinstance(data, DataAdapter | keras.utils.PyDataset | types.GeneratorType):
        return True
    return bool(is_grain_dataset(data) or is_tf_dataset(data) or is_torch_dataloader(data))


def check_arguments(method: str, arguments: Mapping[str, Any], *, is_distributed: bool) -> None:
    """Rejects arguments that would have no effect with the given data.

    Args:
        method: "fit", "evaluate", "predict", or the name of an ``_on_batch`` method.
        arguments: the arguments of the call, by name, without those that were not given.
        is_distributed: whether the model has a strategy. Without one, mostly arguments beside Lockstep's own data are
            checked; Keras checks the others.

    Raises:
        InvalidInputError: an argument would be ignored.
    """
    data = arguments.get("x")
    _check_whole(method, arguments)
    if is_distributed and arguments.get("class_weight") is not None:
        _check_class_weight(arguments["class_weight"])
    if method.endswith("_on_batch"):
        _check_batch(method, arguments, is_distributed=is_distributed)
        return
    if is_distributed or isinstance(data, DataAdapter):
        _check_is_there(method, data)
        _check_rows(method, arguments, names={name: name for name in _INSTEAD})
        if method == "fit":
            _check_fit(arguments)
    validation = arguments.get("validation_data")
    if validation is not None:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(validation)
        given = {"x": x, "y": y, "sample_weight": weights, "batch_size": arguments.get("validation_batch_size")}
        if is_distributed or isinstance(x, DataAdapter):
            names = {"y": "validation_data's y", "sample_weight": "validation_data's sample_weight"}
            _check_rows(method, given, names={**names, "batch_size": "validation_batch_size"})


def _check_whole(method: str, arguments: Mapping[str, Any]) -> None:
    """Rejects batches that are divided over replicas already, because the trainer divides batches itself."""
    for name in ("x", "y", "sample_weight"):
        if any(isinstance(leaf, PerReplica) for leaf in keras.tree.flatten(arguments.get(name))):
            raise InvalidInputError(
                f"{method} takes whole batches, not batches that are divided over replicas",
                received=f"PerReplica as {name}",
                action="give fit, evaluate or predict the distributed data set; or train by strategy.run",
            )


def _check_is_there(method: str, data: Any) -> None:
    """Rejects data without a batch. Keras's own error would only name a consequence."""
    if comes_in_batches(data) and isinstance(data, Sized):
        try:
            num_batches = len(data)
        except (TypeError, NotImplementedError):  # the number is unknown
            return
        if not num_batches:
            raise InvalidInputError(
                f"{method} was given data without a batch", received=type(data).__name__, allowed="one batch or more"
            )


def _check_class_weight(class_weight: Any) -> None:
    """Rejects weights whose keys cannot be classes. Keras would find no such class, and weigh nothing.

    Raises:
        InvalidInputError: the argument is not a mapping of whole numbers to finite numbers.
    """
    if not isinstance(class_weight, Mapping):
        raise InvalidInputError(
            "class_weight", received=type(class_weight).__name__, allowed="a dict of weights by class"
        )
    for key, weight in cast("Mapping[Any, Any]", class_weight).items():
        is_class = type(key) is not bool and isinstance(key, Real) and key == math.floor(key)
        if not is_class or not isinstance(weight, Real) or not math.isfinite(weight):
            raise InvalidInputError(
                "class_weight",
                received=f"{{{key!r}: {weight!r}}}",
                allowed="classes as whole numbers, as in y, with finite numbers as weights",
            )


def _check_batch(method: str, arguments: Mapping[str, Any], *, is_distributed: bool) -> None:
    data = arguments.get("x")
    if isinstance(data, DataAdapter) or (is_distributed and comes_in_batches(data)):
        raise InvalidInputError(
            f"{method} takes the arrays of one batch as x",
            received=type(data).__name__,
            action=f"take a batch of the data first, or call {method.removesuffix('_on_batch')}",
        )
    if is_distributed and arguments.get("class_weight") is not None and arguments.get("y") is None:
        raise _no_targets(method)


def _check_rows(method: str, arguments: Mapping[str, Any], *, names: Mapping[str, str]) -> None:
    data = arguments.get("x")
    for name, instead in _INSTEAD.items() if comes_in_batches(data) else ():
        if arguments.get(name) is not None:
            raise InvalidInputError(
                f"{method} was given {names[name]} beside data that comes in batches, where it would have no effect",
                received=f"{names[name]} with {type(data).__name__}",
                action=instead,
            )


def _check_fit(arguments: Mapping[str, Any]) -> None:
    data = arguments.get("x")
    is_in_batches = comes_in_batches(data)
    if is_in_batches and arguments.get("validation_split") and arguments.get("validation_data") is None:
        raise InvalidInputError(
            "fit was given validation_split beside data that comes in batches, which cannot be split",
            received=f"validation_split={arguments['validation_split']} with {type(data).__name__}",
            allowed="arrays as x",
            action="give the rows to validate by as validation_data",
        )
    if arguments.get("shuffle") and isinstance(data, DataAdapter) and not getattr(data, "is_shuffled", False):
        # For data sets that Keras knows, Keras itself warns that it does not shuffle them.
        raise InvalidInputError(
            "fit was given shuffle=True with data that has its own order",
            received=type(data).__name__,
            allowed="shuffle=False, or nothing",
            action="give Batches a seed" if isinstance(data, GlobalBatches) else "shuffle the data before",
        )
    if arguments.get("class_weight") is None:
        return
    if arguments.get("sample_weight") is not None:
        raise InvalidInputError("fit was given class_weight and sample_weight", allowed="one of them")
    if not is_in_batches and arguments.get("y") is None:
        raise _no_targets("fit")


def _no_targets(method: str) -> InvalidInputError:
    return InvalidInputError(
        f"{method} was given class_weight, and no targets whose classes could be weighed",
        received="no y",
        action="give it y, or batches (x, y)",
    )


@final
class ClassWeights:
    """Gives each row of a batch the weight of its class, as Keras does for arrays.

    Args:
        class_weight: the weights by class. A class without an entry has weight 1.

    Raises:
        InvalidInputError: the argument is not a mapping of whole numbers to finite numbers.
    """

    def __init__(self, class_weight: Any) -> None:
        _check_class_weight(class_weight)
        self._weights: Mapping[int, float] = class_weight

    def __call__(self, batch: Any) -> Any:
        """Returns the batch with weights.

        Args:
            batch: ``(x, y)``; or None, for a process without rows, which stays None.

        Raises:
            InvalidInputError: the batch has no targets, several targets, or weights already.
        """
        if batch is None:
            return None
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if weights is not None:
            raise InvalidInputError(
                "class_weight was given beside batches that hold weights", received="batches (x, y, sample_weight)"
            )
        if y is None:
            raise _no_targets("fit")
        if keras.tree.is_nested(y):
            raise InvalidInputError(
                "class_weight is for models of one output",
                received="several targets",
                action="have each batch hold weights for each output: (x, y, sample_weight)",
            )
        return x, y, class_weight_to_sample_weights(y, self._weights)
