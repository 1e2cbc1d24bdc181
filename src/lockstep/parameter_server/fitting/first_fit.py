"""The first ``fit`` of a script. Workers know no other one, because they stay in it until the training is over."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.upstream.keras_trainer import compiled_loss_of, compiled_metrics_of

_OBJECTS: Final = ("x", "y", "sample_weight")
_VALUES: Final = {"batch_size": None, "class_weight": None, "validation_split": 0.0, "shuffle": True}
"""Other arguments that decide which batches there are, with Keras's defaults."""


@final
class FirstFit:
    """The first ``fit``. Later ones must match it.

    Args:
        model: the model, built.
        arguments: the arguments of ``fit``, as the script passed them.
    """

    def __init__(self, model: Any, arguments: Mapping[str, Any]) -> None:
        self._model = model
        self._objects = _objects(arguments)
        self._values = _values(arguments)
        self._parts = _parts(model)

    def check(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Checks that the workers can run a later ``fit``.

        Args:
            model: the model.
            arguments: the arguments of ``fit``, as the script passed them.

        Raises:
            WrongStateError: it trains another model.
            InvalidInputError: it has other data, or the model was compiled again, or other layers are frozen.
        """
        if model is not self._model:
            raise WrongStateError(
                "the parameter servers keep another model already", action="train one model in a script"
            )
        objects, values = _objects(arguments), _values(arguments)
        other = [name for name, value in objects.items() if value is not self._objects[name]]
        other += [name for name, value in values.items() if value != self._values[name]]
        if other:
            raise InvalidInputError(
                "a later fit has other data, which the workers do not have",
                received=f"another {', '.join(other)}",
                allowed=f"the same objects as {', '.join(_OBJECTS)}, and the same {', '.join(_VALUES)}",
                action="give the first fit a DatasetCreator whose data go on as they should",
            )
        parts = _parts(model)
        changed = [
            name
            for name, now in parts.items()
            if len(now) != len(self._parts[name])
            or any(one is not before for one, before in zip(now, self._parts[name], strict=True))
        ]
        if changed:
            raise InvalidInputError(
                "the model was compiled again, or its layers were frozen or unfrozen, after the first fit, but the "
                "workers still have the first model",
                received=f"another {changed[0]}",
                action="save the model, and continue its training in another script",
            )


def _objects(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments.get(name) for name in _OBJECTS}


def _values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments.get(name, default) for name, default in _VALUES.items()}


def _parts(model: Any) -> dict[str, list[Any]]:
    return {
        "optimizer": [model.optimizer],
        "loss": [compiled_loss_of(model)],
        "set of metrics": [compiled_metrics_of(model)],
        "set of trainable variables": list(model.trainable_variables),
    }
