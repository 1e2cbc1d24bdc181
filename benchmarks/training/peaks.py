"""Published rates of GPUs: products of matrices of bfloat16, without sparsity, added up in float32."""

from __future__ import annotations

from typing import Final

TERA: Final = 1e12
PEAKS: Final = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10G": 70,
    "A10": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
"""TFLOP/s by a part of the device's name, as NVIDIA's data sheets have them; the first part that fits is meant."""


def peak_of(device: str) -> float | None:
    """Returns the peak rate of a device in operations a second, or None if it is not known."""
    return next((rate * TERA for name, rate in PEAKS.items() if name in device), None)
