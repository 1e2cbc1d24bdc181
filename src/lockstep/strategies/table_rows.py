"""Rows of embedding tables that parameter servers keep, as models and checkpoints of every strategy know them.

The first values of rows that nobody has seen are drawn for each row by itself, so that any server gives the same. They
come from the row's id, the table's seed and the column alone, by SplitMix64 (Steele, Lea, Flood 2014): not from the
order in which rows are met, nor from how many servers there are.
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
    """Rows with all that is known of them.

    Attributes:
        ids: int64[rows], rising.
        values: float32[rows, columns].
        state: the optimizer's, float32[rows, width] of each kind.
        num_pushes: how many pushes the table has had.
    """

    ids: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    state: dict[str, np.ndarray[Any, Any]]
    num_pushes: int


@final
class Draw(StrEnum):
    """How values are distributed."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    NORMAL = "normal"
    TRUNCATED_NORMAL = "truncated_normal"


@final
@dataclass(frozen=True, kw_only=True)
class RowValues:
    """Gives rows their first values.

    Attributes:
        draw: the distribution.
        centre: the constant, the middle of a uniform range, or the mean.
        scale: half of a uniform range's width, or the standard deviation; of the normal one before it is cut off at two
            of them.
        seed: the table's.
    """

    draw: Draw = Draw.UNIFORM
    centre: float = 0.0
    scale: float = 0.05
    seed: int = 0

    def of(self, ids: np.ndarray[Any, Any], *, num_columns: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Returns rows' values.

        Args:
            ids: int64[rows].
            num_columns: how many values a row has.
            dtype: theirs.

        Returns:
            dtype[rows, num_columns].
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
        """Returns float64[rows, columns] of (0, 1)."""
        with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
            base = mix(np.uint64(self.seed % (1 << 64)) + GAMMA * np.uint64(stream + 1))
            rows = mix(ids.astype(np.uint64) * GAMMA + base)
            columns = np.arange(1, num_columns + 1, dtype=np.uint64) * GAMMA
            bits = mix(rows[:, None] + columns[None, :])
        return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * _UNIT

    def _normal(self, ids: np.ndarray[Any, Any], num_columns: int, *, stream: int = 0) -> np.ndarray[Any, Any]:
        radius = np.sqrt(-2.0 * np.log(self._units(ids, num_columns, stream=stream)))  # Box and Muller
        return radius * np.cos(2.0 * math.pi * self._units(ids, num_columns, stream=stream + 1))

    def _truncated(self, ids: np.ndarray[Any, Any], num_columns: int) -> np.ndarray[Any, Any]:
        values = self._normal(ids, num_columns)
        stream = 2
        while (beyond := np.abs(values) > 2.0).any():  # each value that is too far out is drawn again: 5% each time
            values = np.where(beyond, self._normal(ids, num_columns, stream=stream), values)
            stream += 2
        return values


def row_values(config: dict[str, Any], *, shape: tuple[int, int], seed: int) -> RowValues:
    """Returns what stands for a Keras initializer of a whole table.

    Args:
        config: what ``keras.initializers.serialize`` gives.
        shape: the table's.
        seed: the table's, where the initializer has none.

    Raises:
        InvalidInputError: rows cannot be drawn by themselves as it draws.
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
    # Keras widens a normal distribution that is cut off, so that what is left has the deviation that is meant.
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
