"""The rows of embedding tables on parameter servers, in the form that models and checkpoints of every strategy use.

The initial values of each row are drawn separately, so that any server computes the same values. They depend only on
the row's id, the table's seed and the column, by SplitMix64 (Steele, Lea, Flood 2014). They depend neither on the order
in which rows are met nor on the number of servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, final

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.strategies.splitmix64 import GAMMA, mix

_UNIT: Final = 1.0 / (1 << 53)


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a table, with their values and their optimizer state.

    Attributes:
        ids: the ids of the rows, in ascending order; int64[rows].
        values: the values of the rows; float32[rows, columns].
        state: the optimizer's state by kind, each float32[rows, width].
        num_pushes: the number of pushes that the table has received.
    """

    ids: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    state: dict[str, np.ndarray[Any, Any]]
    num_pushes: int


@final
class Draw(StrEnum):
    """The distribution of initial values."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    NORMAL = "normal"
    TRUNCATED_NORMAL = "truncated_normal"


@final
@dataclass(frozen=True, kw_only=True)
class RowValues:
    """Computes the initial values of rows.

    Attributes:
        draw: the distribution.
        centre: the constant, the middle of a uniform range, or the mean.
        scale: half of the width of a uniform range, or the standard deviation. For the truncated normal distribution,
            it is the standard deviation before the truncation at two standard deviations.
        seed: the table's seed.
    """

    draw: Draw = Draw.UNIFORM
    centre: float = 0.0
    scale: float = 0.05
    seed: int = 0

    def of(self, ids: np.ndarray[Any, Any], *, num_columns: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Returns the initial values of rows.

        Args:
            ids: the ids of the rows; int64[rows].
            num_columns: the number of values of a row.
            dtype: the dtype of the values.

        Returns:
            The values; dtype[rows, num_columns].
        """
        if self.draw is Draw.CONSTANT:
            return np.full((len(ids), num_columns), self.centre, dtype)
        if self.draw is Draw.UNIFORM:
            values = 2.0 * self._units(ids, num_columns, stream=0) - 1.0
        elif self.draw is Draw.NORMAL:
            values = self._normal(ids, num_columns)
        else:
            values = self._truncated(ids, num_columns)
        return (self.centre + self.scale * values).astype(dtype)

    def _units(self, ids: np.ndarray[Any, Any], num_columns: int, *, stream: int) -> np.ndarray[Any, Any]:
        """Returns uniform values in (0, 1); float64[rows, columns]."""
        with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
            base = mix(np.uint64(self.seed % (1 << 64)) + GAMMA * np.uint64(stream + 1))
            rows = mix(ids.astype(np.uint64) * GAMMA + base)
            columns = np.arange(1, num_columns + 1, dtype=np.uint64) * GAMMA
            bits = mix(rows[:, None] + columns[None, :])
        return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * _UNIT

    def _normal(self, ids: np.ndarray[Any, Any], num_columns: int, *, stream: int = 0) -> np.ndarray[Any, Any]:
        radius = np.sqrt(-2.0 * np.log(self._units(ids, num_columns, stream=stream)))  # the Box-Muller transform
        return radius * np.cos(2.0 * math.pi * self._units(ids, num_columns, stream=stream + 1))

    def _truncated(self, ids: np.ndarray[Any, Any], num_columns: int) -> np.ndarray[Any, Any]:
        values = self._normal(ids, num_columns)
        stream = 2
        while (beyond := np.abs(values) > 2.0).any():  # values that are too large are drawn again: 5% each time
            values = np.where(beyond, self._normal(ids, num_columns, stream=stream), values)
            stream += 2
        return values


def row_values(config: dict[str, Any], *, shape: tuple[int, int], seed: int) -> RowValues:
    """Converts a Keras initializer of a whole table to one that computes each row separately.

    Args:
        config: the result of ``keras.initializers.serialize``.
        shape: the shape of the table.
        seed: the table's seed. It is used if the initializer has none.

    Raises:
        InvalidInputError: the initializer's values cannot be drawn row by row.
    """
    name, options = str(config.get("class_name")), dict(config.get("config") or {})
    own = options.get("seed")
    seed = own if isinstance(own, int) else seed
    if name in {"Zeros", "Ones", "Constant"}:
        centre = {"Zeros": 0.0, "Ones": 1.0}.get(name, float(options.get("value", 0.0)))
        return RowValues(draw=Draw.CONSTANT, centre=centre, seed=seed)
    if name == "RandomUniform":
        low, high = float(options["minval"]), float(options["maxval"])
        return RowValues(draw=Draw.UNIFORM, centre=(low + high) / 2, scale=(high - low) / 2, seed=seed)
    if name in {"RandomNormal", "TruncatedNormal"}:
        draw = Draw.NORMAL if name == "RandomNormal" else Draw.TRUNCATED_NORMAL
        return RowValues(draw=draw, centre=float(options["mean"]), scale=float(options["stddev"]), seed=seed)
    variance = _VARIANCES.get(name) or _given_variance(name, options)
    if variance is None:
        raise InvalidInputError(
            "an initializer that cannot give each row its own values",
            received=name,
            allowed=[
                "Zeros",
                "Ones",
                "Constant",
                "RandomUniform",
                "RandomNormal",
                "TruncatedNormal",
                "VarianceScaling",
            ],
        )
    factor, mode, draw = variance
    fan_in, fan_out = shape
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    deviation = math.sqrt(factor / max(1.0, fans[mode]))
    if draw is Draw.UNIFORM:
        return RowValues(draw=draw, scale=math.sqrt(3.0) * deviation, seed=seed)
    # Keras widens a truncated normal distribution, so that it has the intended standard deviation after the truncation.
    return RowValues(draw=draw, scale=deviation / (_CUT_DEVIATION if draw is Draw.TRUNCATED_NORMAL else 1.0), seed=seed)


_CUT_DEVIATION: Final = 0.87962566103423978
_VARIANCES: Final = {
    "GlorotUniform": (1.0, "fan_avg", Draw.UNIFORM),
    "GlorotNormal": (1.0, "fan_avg", Draw.TRUNCATED_NORMAL),
    "HeUniform": (2.0, "fan_in", Draw.UNIFORM),
    "HeNormal": (2.0, "fan_in", Draw.TRUNCATED_NORMAL),
    "LecunUniform": (1.0, "fan_in", Draw.UNIFORM),
    "LecunNormal": (1.0, "fan_in", Draw.TRUNCATED_NORMAL),
}


def _given_variance(name: str, options: dict[str, Any]) -> tuple[float, str, Draw] | None:
    if name != "VarianceScaling":
        return None
    draw = {"uniform": Draw.UNIFORM, "untruncated_normal": Draw.NORMAL}.get(
        options["distribution"], Draw.TRUNCATED_NORMAL
    )
    return float(options["scale"]), str(options["mode"]), draw
