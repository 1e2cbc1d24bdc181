"""The precision of a training, by name: the dtype in which layers compute, chosen by the devices or refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Final

import jax
import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies.devices import Device, describe_devices
from lockstep.strategies.epochs import current_layout

logger = logging.getLogger(__name__)

AUTO: Final = "auto"

POLICIES: Final = {
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
    "float8": "mixed_bfloat16",
}
"""Keras's dtype policy of each precision. Variables are float32 under all of them."""

BFLOAT16_CAPABILITY: Final = (8, 0)
"""The compute capability from which on NVIDIA's GPUs compute in bfloat16: Ampere, of 2020."""

FLOAT8_CAPABILITY: Final = (8, 9)
"""The compute capability from which on NVIDIA's GPUs compute in float8: Ada and Hopper, of 2022."""


def choose_precision(name: str = AUTO, *, devices: Sequence[Device] | None = None) -> str:
    """Chooses the precision of a training by its devices, or checks the one that was asked for.

    "auto" is the fastest precision that needs no change of the model: bfloat16 on TPUs, on NVIDIA's GPUs since Ampere
    and on AMD's GPUs, float16 on older GPUs of NVIDIA, float32 elsewhere. With `ParameterServerStrategy` it is never
    float16, because parameter servers cannot scale losses dynamically.

    Args:
        name: "auto", "float32", "bfloat16", "float16" or "float8".
        devices: the devices that compute. By default, those of the current strategy, or without one this process's
            first device, which Keras uses.

    Returns:
        The name of the precision: "float32", "bfloat16", "float16" or "float8".

    Raises:
        InvalidInputError: there is no such precision, or it is float8 and not every device computes in float8.
    """
    if name != AUTO and name not in POLICIES:
        raise InvalidInputError("a precision", received=name, allowed=[AUTO, *POLICIES])
    layout = current_layout()
    if devices is None:
        devices = jax.local_devices()[:1] if layout is None else layout.devices
    if name == "float8" and not all(_capability(device) >= FLOAT8_CAPABILITY for device in devices):
        major, minor = FLOAT8_CAPABILITY
        raise InvalidInputError(
            "these devices do not compute in float8",
            received=describe_devices(devices),
            allowed=f"NVIDIA GPUs of compute capability {major}.{minor} or later, such as L4 and H100",
            action="use bfloat16, which every device computes in",
        )
    if name != AUTO:
        return name
    found = {_fastest(device) for device in devices}
    is_scaled = layout is None or layout.runs is None
    if found <= {"bfloat16"}:
        return "bfloat16"
    return "float16" if found <= {"bfloat16", "float16"} and is_scaled else "float32"


def set_precision(name: str = AUTO, *, devices: Sequence[Device] | None = None) -> str:
    """Sets the precision in which the layers that are made from now on compute.

    It sets Keras's global dtype policy, ``keras.config.set_dtype_policy``. Under every precision, the variables of
    model and optimizer are float32, and so are checkpoints and saved models. With float16, ``compile`` wraps the
    optimizer into a ``keras.optimizers.LossScaleOptimizer``, which scales the loss dynamically (Micikevicius et al.,
    "Mixed Precision Training", 2018). With float8, layers compute in bfloat16. Call
    ``model.quantize("float8")`` before ``compile``: then dense layers multiply in float8.

    Args:
        name: "auto", "float32", "bfloat16", "float16" or "float8"; see `choose_precision`.
        devices: the devices that compute; see `choose_precision`.

    Returns:
        The name of the precision: "float32", "bfloat16", "float16" or "float8".

    Raises:
        InvalidInputError: there is no such precision, or it is float8 and not every device computes in float8.
    """
    precision = choose_precision(name, devices=devices)
    keras.config.set_dtype_policy(POLICIES[precision])
    if name == AUTO:
        logger.info("precision: %s, the fastest that the devices have", precision)
    return precision


def _fastest(device: Device) -> str:
    if device.platform == "tpu":
        return "bfloat16"
    if device.platform != "gpu":
        return "float32"
    capability = _capability(device)
    return "float16" if capability and capability < BFLOAT16_CAPABILITY else "bfloat16"


def _capability(device: Device) -> tuple[int, ...]:
    """Returns a GPU's compute capability; no numbers if it is not NVIDIA's, such as AMD's "gfx942"."""
    given: Any = getattr(device, "compute_capability", None)
    is_numbers = isinstance(given, str) and re.fullmatch(r"\d+\.\d+", given) is not None
    return tuple(int(part) for part in given.split(".")) if is_numbers else ()
