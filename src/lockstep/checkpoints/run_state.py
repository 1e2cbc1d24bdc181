"""What a run of ``fit`` needs to continue besides its model: the states of callbacks, and the metrics of an epoch."""

# Keras and NumPy are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias, cast, final

import jax
import jax.numpy as jnp
import numpy as np

from lockstep.errors import CorruptDataError, InvalidInputError

CALLBACKS: Final = "callbacks"
"""The name of the group of arrays that belong to the states of callbacks."""
_KINDS: Final = "biufcV"
"""The kinds of dtypes that are numbers; V has those that JAX adds, such as bfloat16."""

State: TypeAlias = Mapping[str, Any]
"""The state of one callback: JSON values and arrays, in dictionaries and lists."""


@final
@dataclass(frozen=True, kw_only=True)
class RunState:
    """The part of a run's state that is not in its model.

    Attributes:
        metrics: the values of the metrics at the end of an epoch, by name; empty within an epoch.
        callbacks: the state of each callback that has one, by the callback's name.
    """

    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    callbacks: Mapping[str, State] = field(default_factory=dict[str, State])

    def to_json(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the state as a JSON object, and the arrays to which it refers by their keys.

        Raises:
            InvalidInputError: a callback's state has something that is neither a JSON value nor an array.
        """
        arrays: dict[str, np.ndarray] = {}
        callbacks = {name: _encode(state, arrays, where=name) for name, state in self.callbacks.items()}
        return {"metrics": dict(self.metrics), "callbacks": callbacks}, arrays

    @classmethod
    def from_json(cls, document: object, arrays: Mapping[str, np.ndarray]) -> Self:
        """Parses the result of `to_json`.

        Raises:
            CorruptDataError: the document is something else, or an array is missing.
        """
        try:
            found = cast("dict[str, Any]", document)
            callbacks = {name: _decode(state, arrays) for name, state in found["callbacks"].items()}
            return cls(metrics={name: float(value) for name, value in found["metrics"].items()}, callbacks=callbacks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDataError("a checkpoint's state of callbacks", received=f"{error}") from error


def metrics_in(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the numbers among the logs of an epoch. A metric that has several values is left out."""
    found = {name: np.asarray(value) for name, value in (logs or {}).items() if not isinstance(value, str)}
    return {name: float(value) for name, value in found.items() if value.size == 1 and value.dtype.kind in "bfiu"}


def _encode(value: Any, arrays: dict[str, np.ndarray], *, where: str) -> Any:
    """Returns a value as JSON: what is not a plain value becomes an object with one key, which says its kind."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value)
        if all(isinstance(key, str) for key in members):
            return {"dict": {key: _encode(one, arrays, where=f"{where}[{key!r}]") for key, one in members.items()}}
    if isinstance(value, list | tuple):
        members = cast("list[Any]", value)
        return {"list": [_encode(one, arrays, where=f"{where}[{number}]") for number, one in enumerate(members)]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        if not array.size:
            return {"empty": [list(array.shape), array.dtype.name]}
        if array.dtype.kind in _KINDS:
            key = str(len(arrays))
            arrays[key] = array
            return {"array": key}
    raise InvalidInputError(
        f"the state of callback {where} cannot be saved",
        received=type(value).__name__,
        allowed="numbers, text, None, arrays of numbers, and lists and dictionaries of them with text as keys",
    )


def _decode(document: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    match document:
        case {"dict": members}:
            return {key: _decode(value, arrays) for key, value in members.items()}
        case {"list": members}:
            return [_decode(value, arrays) for value in members]
        case {"array": key}:
            return arrays[key]
        case {"empty": [shape, dtype]}:
            return np.zeros(shape, jnp.dtype(dtype))
        case {"float": text}:
            return float(text)
        case _:
            return document
