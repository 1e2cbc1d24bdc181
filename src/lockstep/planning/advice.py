"""Says how much memory a step that does not fit lacks, and what would make it fit, from what the compiler reported."""

from __future__ import annotations

import math
import re
from typing import Final

from lockstep.planning.measurement import Measurement
from lockstep.strategies.programs import BATCH, OPTIMIZER, PARAMETERS

_GIBI: Final = 2**30
_SIZE: Final = r"([\d.]+)([KMG])"
_USED: Final = re.compile(rf"[Uu]sed {_SIZE} of {_SIZE}")
_TEMPORARIES: Final = re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": _GIBI}
_LARGEST_SHARE: Final = 0.7
"""The share of a chip's memory that the state may take, so that activations have room."""


def missing_bytes(measurement: Measurement) -> int | None:
    """Returns the number of bytes that a step needs beyond a chip's memory; None if the compiler does not say.

    Args:
        measurement: a step that does not fit.
    """
    refusal = measurement.refusal or ""
    temporaries = _TEMPORARIES.search(refusal)
    found = temporaries or _USED.search(refusal)
    if found is None:
        return None
    needed, needed_unit, available, available_unit = found.groups()
    missing = round(float(needed) * _UNITS[needed_unit] - float(available) * _UNITS[available_unit])
    # Where temporaries alone are too large, the compiler stops before it adds the arguments.
    return missing + (measurement.memory.arguments_bytes if temporaries else 0)


def advise(measurement: Measurement, *, hbm_bytes: int) -> tuple[str, ...]:
    """Returns what would make a step fit, one sentence each, the most effective first.

    Args:
        measurement: a step that does not fit.
        hbm_bytes: the size of a chip's memory, in bytes.
    """
    memory, num_devices = measurement.memory, measurement.num_devices
    state = sum(size for label, size in memory.arguments.items() if label != BATCH)
    whole = sum(size for label, size in memory.whole.items() if label != BATCH)
    share = whole / num_devices
    found: list[str] = []
    if num_devices > 1 and state > 1.5 * share:
        found.append(
            f"ShardedStrategy(stage=3): parameters and optimizer take {_gibi(share)} of each chip, not {_gibi(state)}"
        )
    if share > _LARGEST_SHARE * hbm_bytes:
        num_chips = math.ceil(whole / (_LARGEST_SHARE * hbm_bytes))
        found.append(f"more chips: {num_chips} or more hold the state of {_gibi(whole)} and leave room for activations")
    optimizer, parameters = (memory.whole.get(label, 0) for label in (OPTIMIZER, PARAMETERS))
    if optimizer > _LARGEST_SHARE * parameters and whole > _LARGEST_SHARE * hbm_bytes:
        found.append(
            f"fewer trained weights, as with LoRA: the optimizer's {_gibi(optimizer)} and as many gradients as weights "
            "are for what is trained"
        )
    found.append(f"a smaller batch than {measurement.num_rows:,} rows, or gradient accumulation over smaller ones")
    found.append("rematerialisation (keras.RematScope): activations are computed twice instead of kept")
    found.append("mixed_bfloat16, which halves activations; bfloat16, which also halves parameters and optimizer")
    return tuple(found)


def _gibi(size_bytes: float) -> str:
    return f"{size_bytes / _GIBI:.3g} GiB"
